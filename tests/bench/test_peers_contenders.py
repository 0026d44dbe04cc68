"""How each peer is started: command lines, and who is there at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.by_hand import commands
from bench.peers.command import found
from bench.peers.contenders import Setting, all_contenders, chosen_contenders
from bench.peers.install import llama_build_commands
from bench.peers.places import ModelFiles, Places
from bench.peers.workloads import Demand
from core.config import load_config
from core.errors import ConfigError


def setting(root: Path) -> Setting:
    return Setting(Places(root), ModelFiles(root / "models" / "m"), "default", 2)


def command(root: Path, name: str, demand: Demand) -> list[str]:
    (contender,) = chosen_contenders([name])
    return contender.launch(setting(root), demand).with_port(8123)


def settings_of(line: list[str]) -> list[str]:
    return [text for text in line if "." in text and "=" in text]


def test_vllm_gets_its_preloads_its_cores_and_its_chunks(tmp_path: Path) -> None:
    library = tmp_path / "vllm/debian/usr/lib/some-arch/libtcmalloc_minimal.so.4"
    library.parent.mkdir(parents=True)
    library.touch()
    line = command(tmp_path, "vllm bf16 chunks 256", Demand(5, 8_000))
    assert line[0] == "env"
    assert f"LD_PRELOAD={library}:{tmp_path}/vllm/lib/libiomp5.so" in line
    assert "VLLM_CPU_OMP_THREADS_BIND=0-1" in line
    assert line[-4:] == ["--max-num-batched-tokens", "256", "--port", "8123"]


def test_llama_has_a_slot_for_every_sequence_and_pinned_threads(tmp_path: Path) -> None:
    line = " ".join(command(tmp_path, "llama.cpp Q8_0", Demand(32, 192)))
    assert f"-m {tmp_path}/models/m/Q8_0.gguf" in line
    assert "-np 32 -c 8192 --no-kv-unified" in line
    assert "-t 2 -tb 2 -C 0x3 --cpu-strict 1" in line


def test_transformers_is_asked_by_its_directory_and_for_all_tokens(tmp_path: Path) -> None:
    (contender,) = chosen_contenders(["transformers bf16"])
    line = command(tmp_path, "transformers bf16", Demand(1, 256))
    assert contender.served_name(setting(tmp_path)) in line
    assert not contender.ignore_eos and "eos_token_id" in str(contender.extra_body)


def test_tandems_own_command_lines_hold_settings_that_it_knows(tmp_path: Path) -> None:
    line = command(tmp_path, "tandem unchunked bf16", Demand(5, 8_000))
    config = load_config(overrides=settings_of(line), environ={})
    assert (config.model.dtype, config.parallel.num_threads) == ("bfloat16", 2)
    assert (config.router.mode, config.router.http_port) == ("combined", 8123)
    assert config.scheduler.prefill_chunk_tokens == 8192


def test_processes_by_hand_share_one_store_and_each_has_one_core(tmp_path: Path) -> None:
    line = command(tmp_path, "tandem 1P+1D by hand bf16", Demand(1, 64))
    store, *others = commands("redis-server", 6400, settings_of(line))
    assert store[:3] == ["redis-server", "--port", "6400"]
    assert [other[3] for other in others] == ["router", "prefill-worker", "decode-worker"]
    for other in others:
        config = load_config(overrides=settings_of(other), environ={})
        assert config.state.redis_url == "redis://127.0.0.1:6400/0"
        assert (config.parallel.num_threads, config.router.http_port) == (1, 8123)


def test_equal_demands_share_a_server_where_the_server_does_not_care(tmp_path: Path) -> None:
    for contender in all_contenders():
        few, many = (
            contender.launch(setting(tmp_path), demand)
            for demand in (Demand(1, 64), Demand(64, 330))
        )
        assert (few == many) is (contender.peer != "llama.cpp"), contender.name


def test_whoever_is_not_installed_is_left_out_and_named(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.program("llama.cpp").parent.mkdir(parents=True)
    places.program("llama.cpp").touch()
    there, left_out = found(all_contenders(), places, redis_server=None)
    assert all(contender.peer is None for contender in there)
    assert left_out["vllm bf16"] == "not installed: tandem bench peers install vllm"
    assert "llama.cpp bf16" in left_out, "half an installation is none"
    assert "--redis-server" in left_out["tandem 1P+1D by hand bf16"]
    places.marker("llama.cpp").touch()
    there, _ = found(all_contenders(), places, redis_server="redis-server")
    assert {contender.peer for contender in there} == {None, "llama.cpp"}


def test_an_unknown_contender_is_refused() -> None:
    with pytest.raises(ConfigError, match="'vllm bf16'"):
        chosen_contenders(["vllm"])


def test_llama_is_built_without_anything_that_is_fetched(tmp_path: Path) -> None:
    configure, build = llama_build_commands(tmp_path / "s", tmp_path / "b", tmp_path / "bin")
    assert "-DLLAMA_USE_PREBUILT_UI=OFF" in configure
    assert build[-2:] == ["llama-server", "llama-quantize"]
