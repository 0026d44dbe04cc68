"""The deployment files parse, and their commands are ones that this release understands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TypeAlias

import fakes_process
import pytest
import typer
import yaml

from cli.main import build_app
from core.config import load_config
from protos.health import LIVENESS, READINESS

DEPLOY = fakes_process.ROOT / "deploy"
Tree: TypeAlias = dict[str, "Tree"] | list["Tree"] | str | int | bool | None


def read(name: str) -> dict[str, Tree]:
    tree = yaml.safe_load((DEPLOY / name).read_text())
    assert isinstance(tree, dict)
    return tree


def at(tree: Tree, *path: str | int) -> Tree:
    """The part of a tree at a path of keys and indices."""
    for step in path:
        assert isinstance(tree, (dict, list))
        tree = tree[step]  # type: ignore[index]
    return tree


def check_command(words: list[str]) -> None:
    """Parses a `tandem` command line, and applies the settings it names."""
    command = typer.main.get_command(build_app())
    verb, *arguments = words
    chosen = command.commands[verb]  # type: ignore[attr-defined]
    parsed = chosen.make_context(verb, list(arguments)).params
    load_config(environ={}, overrides=parsed["settings"] or ())


def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text()


def services() -> dict[str, Tree]:
    found = at(read("compose.yaml"), "services")
    assert isinstance(found, dict)
    return found


def test_a_misspelt_command_would_be_noticed() -> None:
    with pytest.raises(KeyError):
        check_command(["serv", "default"])
    with pytest.raises(Exception, match="No such option"):
        check_command(["serve", "default", "--prot", "1"])
    with pytest.raises(Exception, match="did you mean"):
        check_command(["serve", "default", "--set", "router.http_hots=x"])


def test_the_image_starts_with_a_command_of_ours() -> None:
    (default,) = re.findall(r"^CMD (\[.*\])$", dockerfile(), flags=re.MULTILINE)
    check_command(yaml.safe_load(default))
    assert 'ENTRYPOINT ["tini", "--", "tandem"]' in dockerfile()
    for copied in re.findall(r"^COPY (\S+)", dockerfile(), flags=re.MULTILINE):
        assert (fakes_process.ROOT / copied).exists()


def test_compose_runs_the_three_processes_beside_a_redis() -> None:
    assert set(services()) == {"redis", "router", "prefill", "decode"}
    verbs = {"router": "router", "prefill": "prefill-worker", "decode": "decode-worker"}
    for name, verb in verbs.items():
        command = at(services(), name, "command")
        assert isinstance(command, list)
        words = [str(word) for word in command]
        assert words[0] == verb
        check_command(words)


def test_the_environment_in_compose_holds_known_settings_that_share_a_redis() -> None:
    for name in ("router", "prefill", "decode"):
        environment = at(services(), name, "environment")
        assert isinstance(environment, dict)
        config = load_config(environ={key: str(value) for key, value in environment.items()})
        assert config.state.backend == "redis"
        assert config.state.redis_url.startswith("redis://redis:")
        assert config.worker.host == "auto"


def test_compose_builds_from_a_dockerfile_that_exists() -> None:
    build = at(services(), "router", "build")
    context = DEPLOY / str(at(build, "context"))
    assert (context / str(at(build, "dockerfile"))).resolve() == DEPLOY / "Dockerfile"


def test_a_container_gets_the_time_that_a_drain_takes() -> None:
    config = load_config(environ={})
    needed_s = config.worker.drain_timeout_s + config.cluster.stop_timeout_s
    for name in ("router", "prefill", "decode"):
        grace = str(at(services(), name, "stop_grace_period"))
        assert float(grace.removesuffix("s")) > needed_s


def test_nothing_is_published_beyond_this_machine() -> None:
    for service in services().values():
        assert isinstance(service, dict)
        ports = service.get("ports", [])
        assert isinstance(ports, list)
        assert all(str(port).startswith("127.0.0.1:") for port in ports)


def head_script() -> str:
    container = at(read("raycluster.yaml"), *HEAD)
    return str(at(container, "args", 0))


HEAD: tuple[str | int, ...] = ("spec", "headGroupSpec", "template", "spec", "containers", 0)


def test_the_ray_cluster_serves_with_a_command_of_ours() -> None:
    command = head_script().split("exec tandem ", 1)[1]
    words = shlex.split(command.replace("\\\n", " "))
    check_command(words)
    assert "cluster.ray_address=auto" in words


def test_the_ray_cluster_has_the_version_and_the_cpus_that_serving_takes() -> None:
    project = (fakes_process.ROOT / "pyproject.toml").read_text()
    (pinned,) = re.findall(r'"ray==([\d.]+)\.\*"', project)
    assert str(at(read("raycluster.yaml"), "spec", "rayVersion")).startswith(f"{pinned}.")
    container = at(read("raycluster.yaml"), *HEAD)
    cpus = str(at(container, "resources", "limits", "cpu"))
    assert f"--num-cpus={cpus}" in head_script()


def test_probes_and_ports_are_the_routers() -> None:
    config = load_config(environ={})
    container = at(read("raycluster.yaml"), *HEAD)
    ports = at(container, "ports")
    assert isinstance(ports, list)
    numbers = {at(port, "containerPort") for port in ports}
    assert {config.router.http_port, config.router.grpc_port} <= numbers
    for probe in ("readinessProbe", "livenessProbe"):
        assert at(container, probe, "httpGet", "port") == config.router.http_port


def deployments() -> dict[str, Tree]:
    """Containers of kubernetes.yaml by the name of their Deployment."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    path = ("spec", "template", "spec", "containers", 0)
    return {d["metadata"]["name"]: at(d, *path) for d in documents if d["kind"] == "Deployment"}


def kubernetes_settings() -> dict[str, str]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (data,) = (d["data"] for d in documents if d["kind"] == "ConfigMap")
    return {str(key): str(value) for key, value in data.items()}


def test_deployments_run_commands_of_ours_with_settings_that_are_known() -> None:
    found = deployments()
    assert set(found) == {"tandem-redis", "tandem-prefill", "tandem-decode", "tandem-router"}
    for name in ("tandem-prefill", "tandem-decode", "tandem-router"):
        words = at(found[name], "args")
        assert isinstance(words, list)
        check_command([str(word) for word in words])
    assert load_config(environ=kubernetes_settings()).state.backend == "redis"


def test_pods_of_workers_are_probed_by_the_names_that_workers_answer_to() -> None:
    config = load_config(environ=kubernetes_settings())
    for name in ("tandem-prefill", "tandem-decode"):
        container = deployments()[name]
        for probe, service in (
            ("startupProbe", LIVENESS),
            ("livenessProbe", LIVENESS),
            ("readinessProbe", READINESS),
        ):
            grpc = at(container, probe, "grpc")
            assert grpc == {"port": config.worker.port, "service": service}


def test_every_file_says_how_it_is_used() -> None:
    for name in ("Dockerfile", "compose.yaml", "raycluster.yaml", "kubernetes.yaml"):
        assert Path(DEPLOY / name).read_text().startswith("#")
