"""Where settings come from, which one wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from core.config import ClusterConfig, Config, load_config, model_cache_dir, run_dir
from core.errors import ConfigError


def test_without_sources_the_defaults_hold() -> None:
    config = load_config(environ={})
    assert config == Config()
    assert (config.router.http_port, config.router.grpc_port) == (8000, 50051)
    assert config.router.http_host == config.router.grpc_host == config.worker.host == "127.0.0.1"
    assert config.scheduler.max_num_seqs == 128
    assert config.scheduler.max_num_batched_tokens == 2048
    assert config.cache.block_size == 16
    assert config.cache.gpu_memory_utilization == 0.9


def test_a_file_beats_defaults_the_environment_beats_it_and_set_beats_all(tmp_path: Path) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text(
        "[router]\nhttp_port = 1\ngrpc_port = 1\nmax_attempts = 1\n[scheduler]\nmax_num_seqs = 7\n"
    )
    environ = {"TANDEM_ROUTER__GRPC_PORT": "2", "TANDEM_ROUTER__MAX_ATTEMPTS": "2"}
    config = load_config(file=file, environ=environ, overrides=["router.max_attempts=3"])
    assert config.router.http_port == 1
    assert config.router.grpc_port == 2
    assert config.router.max_attempts == 3
    assert config.scheduler.max_num_seqs == 7


def test_the_last_of_two_overrides_wins() -> None:
    config = load_config(environ={}, overrides=["router.http_port=1", "router.http_port=2"])
    assert config.router.http_port == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("model.offline=true", True),
        ("model.offline=False", False),
        ("model.max_model_len=512", 512),
        ("model.max_model_len=none", None),
        ("model.quantization=none", "none"),
        ("model.calibration=none", None),
        ("model.model=a/b=c", "a/b=c"),
        ("model.served_model_name=7B", "7B"),
        ("cluster.start_timeout_s=2.5", 2.5),
        (" model.dtype =bfloat16", "bfloat16"),
    ],
)
def test_values_of_set_are_literals_where_they_can_be(text: str, value: object) -> None:
    section, key = text.strip().partition("=")[0].strip().split(".")
    config = load_config(environ={}, overrides=[text])
    assert getattr(getattr(config, section), key) == value


def test_a_numeric_name_stays_text_where_text_is_asked_for() -> None:
    config = load_config(
        environ={"TANDEM_MODEL__REVISION": "12e3456"},
        overrides=["state.namespace=42", "model.served_model_name=true"],
    )
    assert config.state.namespace == "42"
    assert config.model.revision == "12e3456"
    assert config.model.served_model_name == "true"


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("router.http_prot=1", "'router.http_prot' (--set); did you mean 'router.http_port'"),
        ("ruoter.http_port=1", "'ruoter' (--set); did you mean 'router'"),
        ("cache.blocksize=16", "did you mean 'cache.block_size'"),
        ("zzz.a=1", "known: model, cache"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(override: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ={}, overrides=[override])
    assert hint in caught.value.message


def test_an_unknown_name_in_a_file_or_the_environment_names_its_source(tmp_path: Path) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text("[cache]\nblock_sizes = 16\n")
    with pytest.raises(ConfigError, match=r"block_sizes' \(.*tandem\.toml\)"):
        load_config(file=file, environ={})
    with pytest.raises(ConfigError, match=r"\(environment\)"):
        load_config(environ={"TANDEM_CACHE__BLOCK_SIZES": "16"})


def test_other_environment_variables_are_none_of_our_business() -> None:
    assert load_config(environ={"TANDEM_HOME": "/x", "PATH": "/bin"}) == Config()


@pytest.mark.parametrize("override", ["router.http_port", "http_port=1", "=1"])
def test_a_malformed_override_is_quoted(override: str) -> None:
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        load_config(environ={}, overrides=[override])


@pytest.mark.parametrize(
    "override",
    [
        "router.http_port=70000",
        "cache.block_size=17",
        "model.dtype=float8",
        "cache.gpu_memory_utilization=1.5",
        "cluster.num_decode_workers=0",
        "cluster.max_restarts=-2",
        "worker.heartbeat_s=0",
    ],
)
def test_a_value_out_of_range_is_refused_with_the_value(override: str) -> None:
    name, value = override.split("=")
    with pytest.raises(ConfigError) as caught:
        load_config(environ={}, overrides=[override])
    assert name in caught.value.message
    assert value in caught.value.message


@pytest.mark.parametrize(
    ("text", "problem"),
    [("not toml", "not valid TOML"), ("a = 1", "must be a section")],
)
def test_a_broken_file_says_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_config(file=file, environ={})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load_config(file=tmp_path / "absent.toml", environ={})


def test_a_configuration_cannot_be_changed() -> None:
    config = Config()
    with pytest.raises(ValidationError):
        config.router.http_port = 1


def test_every_setting_is_documented() -> None:
    for name, section in Config.model_fields.items():
        kind = section.annotation
        assert isinstance(kind, type)
        assert kind.__doc__
        for key, field in kind.model_fields.items():
            assert field.description, f"{name}.{key} has no docstring"


def test_a_token_never_shows_in_a_printed_configuration() -> None:
    config = load_config(environ={}, overrides=["model.hub_token=hf_secret"])
    assert "hf_secret" not in repr(config)


def test_directories_follow_the_setting_then_the_users_cache(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert run_dir(ClusterConfig(), environ) == tmp_path / "tandem" / "run"
    assert run_dir(ClusterConfig(run_dir="/x"), environ) == Path("/x")
    assert model_cache_dir(Config().model, environ) == tmp_path / "tandem" / "models"
    assert model_cache_dir(Config().model, {}) == Path.home() / ".cache" / "tandem" / "models"
