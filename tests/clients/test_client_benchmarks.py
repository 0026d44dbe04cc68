"""Load generators of others run a small profile against `tandem serve default` without an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from client_packages import AIPERF, GUIDELLM
from fakes_process import DEADLINE_S, child, tandem

from bench.peers.export import huggingface_files
from bench.tandem_server import free_port
from cluster import litter
from text.gguf_tokenizer import build_gguf_tokenizer
from text.model_card import load_card
from text.model_source import ModelSource

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

NUM_REQUESTS = 12
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@dataclass(frozen=True)
class Served:
    url: str
    model: str
    tokenizer: Path
    """A directory as transformers reads it: neither program may ask a hub."""


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, default_model_source: ModelSource
) -> Iterator[Served]:
    root, port = tmp_path_factory.mktemp("run"), free_port()
    command = tandem("serve", "default", "--port", str(port), "--grpc-port", "0")
    command += ["--set", f"cluster.run_dir={root}", "--set", "cache.num_blocks=256"]
    command += ["--set", "model.max_model_len=2048", "--set", "parallel.num_threads=1"]
    card = load_card(default_model_source)
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    build_gguf_tokenizer(card.source.path).save(str(tokenizer / "tokenizer.json"))
    for name, values in huggingface_files(card).items():
        (tokenizer / name).write_text(json.dumps(values))
    with child(command) as started:
        try:
            started.wait_for("curl http://")
            yield Served(f"http://127.0.0.1:{port}", card.name, tokenizer)
        finally:
            started.process.send_signal(signal.SIGTERM)
            started.end()
            litter.sweep(root)


def run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **OFFLINE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def report(directory: Path, pattern: str) -> dict[str, Any]:
    (path,) = directory.rglob(pattern)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_aiperf_runs_a_profile_without_an_error(served: Served, tmp_path: Path) -> None:
    command = [
        *(AIPERF.program("aiperf"), "profile", "--model", served.model, "--url", served.url),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(served.tokenizer)),
        *("--concurrency", "3", "--request-count", str(NUM_REQUESTS), "--random-seed", "1"),
        *("--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(tmp_path)),
    ]
    run(command, tmp_path)
    told = report(tmp_path, "profile_export_aiperf.json")
    assert told["request_count"]["avg"] == NUM_REQUESTS
    assert not told.get("error_summary"), told["error_summary"]


def test_guidellm_runs_a_profile_without_an_error(served: Served, tmp_path: Path) -> None:
    data = f"prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"
    command = [
        *(GUIDELLM.program("guidellm"), "benchmark", "run", "--target", served.url),
        *("--profile", "concurrent", "--rate", "3", "--max-requests", str(NUM_REQUESTS)),
        *("--processor", str(served.tokenizer), "--data", data, "--random-seed", "1"),
        *("--output-dir", str(tmp_path), "--outputs", "benchmarks.json"),
    ]
    run(command, tmp_path)
    (benchmark,) = report(tmp_path, "benchmarks.json")["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0), totals
