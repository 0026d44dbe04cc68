"""Models of the hub: fetched once, gone on with after a break, refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_model_files import write_huggingface_directory
from fakes_model_hub import ModelHub, serving

from core.config import ModelConfig
from core.errors import ConfigError
from text.hub import list_models, resolve
from text.model_card import load_card


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    directory = write_huggingface_directory(tmp_path / "origin")
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    files |= {"README.md": b"no", "onnx/model.safetensors": b"no", "pytorch_model.bin": b"no"}
    with serving(ModelHub("owner/tiny", files)) as hub:
        yield hub


def config_for(hub: ModelHub, tmp_path: Path, **changes: object) -> ModelConfig:
    values = {
        "model": hub.model,
        "hub_endpoint": hub.endpoint,
        "cache_dir": str(tmp_path / "cache"),
        **changes,
    }
    return ModelConfig.model_validate(values)


def test_a_hub_id_becomes_a_directory_with_what_is_needed_and_no_more(
    hub: ModelHub, tmp_path: Path
) -> None:
    seen: list[tuple[int, int | None]] = []
    source = resolve(
        config_for(hub, tmp_path), lambda what, done, total: seen.append((done, total))
    )
    assert (source.kind, source.name) == ("huggingface", "owner/tiny")
    assert load_card(source).num_layers == 2
    assert hub.downloads() == ["config.json", "model.safetensors"]
    size = sum(len(hub.files[name]) for name in hub.downloads())
    assert seen[-1] == (size, size)


def test_what_is_cached_is_used_without_asking_until_a_refresh(
    hub: ModelHub, tmp_path: Path
) -> None:
    config = config_for(hub, tmp_path)
    first = resolve(config)
    hub.requests.clear()
    assert resolve(config) == first
    assert resolve(config_for(hub, tmp_path, offline=True)) == first
    assert hub.requests == []
    hub.files = {**hub.files, "generation_config.json": b'{"eos_token_id": 9}'}
    second = resolve(config, refresh=True)
    assert second.path != first.path
    assert load_card(second).eos_token_ids == (2, 9)
    assert resolve(config) == second


def test_a_broken_download_goes_on_where_it_stopped(hub: ModelHub, tmp_path: Path) -> None:
    # The library keeps whole chunks of 10 MiB.
    data = bytes(range(256)) * (12 * 1024 * 4)
    hub.files = {**hub.files, "model.safetensors": data}
    hub.cut_at_bytes["model.safetensors"] = 11 * 1024 * 1024
    config = config_for(hub, tmp_path)
    try:
        source = resolve(config)
    except ConfigError:
        # Whether the library itself tries again depends on its version; the next start does.
        source = resolve(config)
    assert (source.path / "model.safetensors").read_bytes() == data
    ranges = [r for m, p, r in hub.requests if m == "GET" and p.endswith("model.safetensors")]
    assert ranges == ["", f"bytes={10 * 1024 * 1024}-"]


def test_a_revision_is_asked_for_by_name(hub: ModelHub, tmp_path: Path) -> None:
    resolve(config_for(hub, tmp_path, revision="v1.5"))
    assert f"/api/models/{hub.model}/revision/v1.5" in [path for _, path, _ in hub.requests]


def test_a_gated_model_needs_the_token(hub: ModelHub, tmp_path: Path) -> None:
    hub.token = "secret"
    with pytest.raises(ConfigError, match=r"model\.hub_token"):
        resolve(config_for(hub, tmp_path))
    assert resolve(config_for(hub, tmp_path, hub_token="secret")).path.is_dir()


def test_an_unknown_model_is_a_clear_error(hub: ModelHub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot fetch owner/absent from the hub: .*404"):
        resolve(config_for(hub, tmp_path, model="owner/absent"))


def test_an_unreachable_hub_is_a_clear_error(tmp_path: Path) -> None:
    with serving(ModelHub("owner/tiny", {})) as gone:
        pass
    with pytest.raises(ConfigError, match=r"cannot fetch owner/tiny from the hub: .*refused"):
        resolve(config_for(gone, tmp_path))


def test_offline_never_asks(hub: ModelHub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.offline is set"):
        resolve(config_for(hub, tmp_path, offline=True))
    assert hub.requests == []


def test_an_incomplete_copy_is_completed(hub: ModelHub, tmp_path: Path) -> None:
    config = config_for(hub, tmp_path)
    source = resolve(config)
    (source.path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="offline"):
        resolve(config_for(hub, tmp_path, offline=True))
    assert load_card(resolve(config)).num_layers == 2


def test_a_repository_without_weights_is_refused(tmp_path: Path) -> None:
    with (
        serving(ModelHub("owner/tiny", {"config.json": b"{}"})) as hub,
        pytest.raises(ConfigError, match="safetensors"),
    ):
        resolve(config_for(hub, tmp_path))


def test_a_download_has_a_deadline(hub: ModelHub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="took more than"):
        resolve(config_for(hub, tmp_path, download_timeout_s=1e-6))


def test_fetched_models_are_listed_with_their_size(hub: ModelHub, tmp_path: Path) -> None:
    assert list_models(tmp_path / "cache") == ()
    resolve(config_for(hub, tmp_path))
    (model,) = list_models(tmp_path / "cache")
    assert model.model == "owner/tiny"
    assert model.size_bytes >= sum(len(hub.files[name]) for name in hub.downloads())
