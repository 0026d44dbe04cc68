"""Router, workers and operators' commands with certificates, and strangers at all their ports."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from fakes_byte_model import write_byte_model
from fakes_cases import SETTINGS, some_tokens
from fakes_certificates import certificates_in, new_certificates, settings_of
from fakes_golden import Answer, Ask, check
from fakes_loop_thread import DEADLINE_S
from fakes_process import ROOT, child, tandem
from fakes_real_house import Front, RealHouse, describe, real_house, settings
from fakes_solo import Solo

from cli.drain import retire
from cli.kv import books_of
from cli.workers import WorkerAt
from core.config import Config, ModelConfig, TlsConfig
from core.errors import ConfigError, WorkerLostError
from core.request import Phase, SamplingParams
from state.memory import MemoryStore
from state.store import Member
from text.hub import resolve
from text.model_card import load_card

PATIENT = "worker.heartbeat_s=10"
LONG = ("--timeout", "60")
GROUP = ("parallel.prefill_tensor_parallel_size=2", "parallel.step_timeout_s=120")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"model.model={write_byte_model(tmp_path_factory.mktemp('model'), num_heads=8)}"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return new_certificates(tmp_path_factory.mktemp("tls"))


@dataclass(frozen=True)
class Pair:
    house: RealHouse
    front: Front
    p: Member
    d: Member

    def answers(self, salt: str = "") -> list[Answer]:
        return self.house.complete(self.front, asks(), salt)


@contextlib.contextmanager
def pair(config: Config) -> Iterator[Pair]:
    store = MemoryStore()
    with real_house() as house:
        p, d = (house.worker(config, role, store) for role in (Phase.PREFILL, Phase.DECODE))
        front = house.front(config, store)
        house.loop.run(front.until_connected(2))
        yield Pair(house, front, p, d)


def asks() -> list[Ask]:
    """Prompts of one chunk and of several."""
    sampling = SamplingParams(temperature=0.8, seed=5, max_tokens=12, ignore_eos=True, logprobs=2)
    return [
        Ask(f"{length} tokens", tuple(some_tokens(length, seed=length)), sampling)
        for length in (5, 64, 170)
    ]


@pytest.fixture(scope="module")
def secured(model: str, tls: TlsConfig) -> Iterator[Pair]:
    with pair(settings(model, *settings_of(tls))) as made:
        yield made


def test_answers_are_those_of_a_plain_house_bit_for_bit(secured: Pair, model: str) -> None:
    with pair(settings(model)) as plain:
        expected = plain.answers()
    answers = secured.answers()
    assert [answer.choices for answer in answers] == [answer.choices for answer in expected]
    assert [answer.num_attempts for answer in answers] == [1, 1, 1]


def test_so_they_are_from_a_group_of_ranks(model: str, tls: TlsConfig) -> None:
    solo = Solo(load_card(resolve(ModelConfig(model=model.partition("=")[2]))), model)
    with pair(settings(model, *GROUP, *settings_of(tls))) as made:
        answers = made.answers()
    for ask, answer in zip(asks(), answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)
        assert answer.num_attempts == 1


def test_who_has_no_certificate_learns_nothing_of_a_worker_which_serves_on(
    secured: Pair, tls: TlsConfig
) -> None:
    at = WorkerAt("decode-0", secured.d.address, secured.d.epoch)
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        secured.house.loop.run(describe(secured.d.address))
    books = secured.house.loop.run(books_of(at, DEADLINE_S))
    assert "no answer (UNAVAILABLE)" in books.problem
    with pytest.raises(WorkerLostError, match="UNAVAILABLE"):
        secured.house.loop.run(retire(at, DEADLINE_S, restart=False))
    assert secured.house.loop.run(books_of(at, DEADLINE_S, certificates_in(tls))).sound
    assert [answer.num_attempts for answer in secured.answers("again")] == [1, 1, 1]


def test_strangers_at_every_port_of_the_house_disturb_no_transfer(secured: Pair) -> None:
    """Some say nothing, some something wrong; all stay while requests are served."""
    with contextlib.ExitStack() as crowd:
        for port in listening_ports():
            for words in (b"", b"\x01\0\0\0\0\0\0\0", b"\x16\x03\x01\x02\0\x01"):
                stranger = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
                crowd.enter_context(stranger).sendall(words)
        answers = secured.answers("in a crowd")
    assert [answer.num_attempts for answer in answers] == [1, 1, 1]


def listening_ports() -> list[int]:
    """Of this process, whoever opened them."""
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = "0A"
    return [
        int(row[1].split(":")[1], 16)
        for row in rows
        if row[3] == listening and f"socket:[{row[9]}]" in own
    ]


def test_a_worker_whose_certificates_are_wrong_does_not_start(
    model: str, tls: TlsConfig, tmp_path: Path
) -> None:
    other = new_certificates(tmp_path)
    wrong = settings_of(tls.model_copy(update={"key": other.key}))
    with real_house() as house, pytest.raises(ConfigError, match=r"tls\.key"):
        house.worker(settings(model, *wrong), Phase.DECODE, MemoryStore())


@pytest.mark.parametrize("secure", [False, True])
def test_a_worker_that_others_reach_says_at_its_start_if_it_is_not_protected(
    model: str, tls: TlsConfig, caplog: pytest.LogCaptureFixture, secure: bool
) -> None:
    config = settings(model, "worker.host=0.0.0.0", *(settings_of(tls) if secure else ()))
    with real_house() as house:
        house.worker(config, Phase.DECODE, MemoryStore())
    assert ("worker.host is 0.0.0.0 without tls.*" in caplog.text) is not secure


def test_commands_reach_workers_by_hand_with_certificates_only(
    model: str, tls: TlsConfig, redis_url: str
) -> None:
    state = ["state.backend=redis", f"state.redis_url={redis_url}"]
    state.append(f"state.namespace={uuid.uuid4().hex}")

    def command(*words: str, settings: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            tandem(*words, *flags(settings)),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=DEADLINE_S,
        )

    secure = [*state, *settings_of(tls)]
    worker = tandem(
        "decode-worker", "--id", "decode-a", *flags([*SETTINGS, PATIENT, model, *secure])
    )
    with child(worker) as started:
        address = started.wait_for("decode-a ready").split()[-1]
        probe = command("probe", address, *LONG, settings=secure)
        assert (probe.returncode, probe.stdout) == (0, "SERVING\n"), probe.stderr
        probe = command("probe", address, *LONG, settings=state)
        assert (probe.returncode, "no answer" in probe.stdout) == (1, True), probe.stderr
        audit = command("kv", "audit", *LONG, settings=state)
        assert (audit.returncode, "UNAVAILABLE" in audit.stdout) == (1, True), audit.stdout
        audit = command("kv", "audit", *LONG, settings=secure)
        assert (audit.returncode, "decode-a  decode" in audit.stdout) == (0, True), audit.stderr
        drain = command("drain", "decode-a", settings=[*state, "tls.ca=x"])
        assert (drain.returncode, "belong together" in drain.stderr) == (2, True), drain.stderr
        drain = command("drain", "decode-a", *LONG, settings=secure)
        assert drain.returncode == 0, drain.stderr
        assert started.end() == 0


def flags(overrides: list[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def test_a_drained_worker_of_the_house_ends(secured: Pair, tls: TlsConfig) -> None:
    """The last test of this house."""
    at = WorkerAt("decode-0", secured.d.address, secured.d.epoch)
    certificates = certificates_in(tls)
    drained = retire(at, DEADLINE_S, restart=False, certificates=certificates)
    assert secured.house.loop.run(drained) == 0
