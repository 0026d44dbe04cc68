"""The command line itself: help, mistakes, and what a verb imports."""

from __future__ import annotations

import subprocess
import sys

import fakes_process
import pytest
import typer
from fakes_process import tandem

from cli.main import build_app

VERBS = (
    "serve",
    "demo",
    "router",
    "prefill-worker",
    "decode-worker",
    "chat",
    "calibrate",
    "eval",
    "status",
    "logs",
    "kv",
    "keys",
    "usage",
    "certificates",
    "drain",
    "probe",
    "stop",
    "config",
    "model",
    "bench",
    "kernels",
)
INNER_VERBS = (
    "model fetch",
    "model list",
    "model info",
    "kernels build",
    "kv audit",
    "keys create",
    "keys list",
    "keys revoke",
    "certificates create",
    "eval perplexity",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tandem(*arguments),
        capture_output=True,
        text=True,
        cwd=fakes_process.ROOT,
        timeout=fakes_process.DEADLINE_S,
    )


def test_help_names_every_verb_with_a_sentence() -> None:
    command = typer.main.get_command(build_app())
    assert set(command.commands) == set(VERBS)  # type: ignore[attr-defined]
    for name, verb in command.commands.items():  # type: ignore[attr-defined]
        assert verb.help, f"{name} has no help"
    shown = run("--help")
    assert shown.returncode == 0
    for name in VERBS:
        assert name in shown.stdout


@pytest.mark.parametrize("verb", [*VERBS, *INNER_VERBS])
def test_every_verb_explains_itself(verb: str) -> None:
    shown = run(*verb.split(), "--help")
    assert shown.returncode == 0
    assert "Usage" in shown.stdout


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys\n"
        "from cli.main import build_app\n"
        "build_app()(['--help'], standalone_mode=False)\n"
        "slow = {'ray', 'torch', 'pydantic', 'httpx', 'grpc', 'numpy', 'redis', 'tokenizers'}\n"
        "print('loaded:', sorted(slow & set(sys.modules)))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=fakes_process.ROOT,
        timeout=fakes_process.DEADLINE_S,
        check=True,
    )
    assert "loaded: []" in shown.stdout


def test_a_deliberate_error_is_one_line_and_no_trace() -> None:
    shown = run("serve", "default", "--set", "router.http_prot=1")
    assert shown.returncode == 2
    assert shown.stderr.strip() == (
        "tandem: unknown setting 'router.http_prot' (--set); did you mean 'router.http_port'?"
    )


def test_a_model_that_does_not_exist_is_refused_before_anything_starts() -> None:
    shown = run("serve", "/nowhere/model.gguf")
    assert shown.returncode == 2
    assert "/nowhere/model.gguf" in shown.stderr
    assert "ray" not in shown.stderr


def test_a_process_by_hand_wants_a_redis() -> None:
    shown = run("decode-worker", "default")
    assert shown.returncode == 2
    assert "state.backend=redis" in shown.stderr


def test_the_bench_verbs_get_their_arguments_untouched() -> None:
    shown = run("bench", "serve", "--help")
    assert shown.returncode == 0
    assert "tandem bench serve" in shown.stdout
