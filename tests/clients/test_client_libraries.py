"""Libraries that others talk to us with: a chat, a stream, calls that must be made.

Each runs as a process in its own environment, against P and D with real engines.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_packages import LANGCHAIN, LITELLM, Client
from fakes_byte_model import write_byte_model
from fakes_process import DEADLINE_S
from fakes_real_house import PairHouse, pair_house

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

QUESTION = "How is the weather in Paris?"
QUIET = {
    # No list of prices from elsewhere, no look at a hub for a tokenizer
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
}
Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PairHouse]:
    model = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    with pair_house(both=(f"model.model={model}", "model.max_model_len=4096")) as made:
        yield made
        made.check_whole()


def asked_with(client: Client, program: str, pair: PairHouse) -> Told:
    path = Path(__file__).parent / program
    url = str(pair.split.http.base_url).rstrip("/")
    done = subprocess.run(
        [client.program(), str(path), url, pair.split.model, QUESTION],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: Told = json.loads(done.stdout.splitlines()[-1])  # after what a library has to say
    return told


def said_by(pair: PairHouse) -> str:
    """What the model answers whoever asks without a library."""
    body = {
        "model": pair.split.model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 24,
    }
    response = pair.house.loop.run(pair.split.http.post("/v1/chat/completions", json=body))
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize(
    ("client", "program"),
    [(LITELLM, "ask_with_litellm.py"), (LANGCHAIN, "ask_with_langchain.py")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_library_gets_chats_streams_and_calls(
    pair: PairHouse, client: Client, program: str
) -> None:
    told = asked_with(client, program, pair)
    expected = said_by(pair)
    for name in ("whole", "streamed", "responses", "responses streamed"):
        if name in told:
            assert told[name]["text"] == expected, name
            assert told[name]["tokens"] == told["whole"]["tokens"], name
            assert not told[name]["calls"]
    assert told["whole"]["tokens"][1] == 24
    assert told["whole"]["reason"] == told["streamed"]["reason"] == "length"
    for name in ("named", "named streamed", "required"):
        (call,) = told[name]["calls"]
        assert call in (["weather", {"city": "Paris"}], ["weather", {"city": "Rome"}]), name
    assert told["named"] == told["named streamed"]
