"""Attempts with a grammar wait for it, and nothing that is said of them overtakes them."""

from __future__ import annotations

import threading

import llguidance
import pytest

from core.request import Attempt, AttemptFailed, SamplingParams
from engine.grammar_gate import GrammarGate
from engine.role import Cancel, Submit
from text.structure.compiler import GrammarCompiler
from text.structure.grammar_text import choice_part, grammar_text
from text.structure.vocabulary import grammar_vocabulary
from text.tokenizer import Tokenizer

DEADLINE_S = 30.0
AB = grammar_text([choice_part(["ab"])])


class Scene:
    """A gate whose vocabulary, and so whose first grammar, waits to be let go."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.open = threading.Event()
        self.posted: list[object] = []
        self.refused: list[AttemptFailed] = []
        self._done = threading.Semaphore(0)
        self._tokenizer = tokenizer
        self.compiler = GrammarCompiler(self._vocabulary)
        self.gate = GrammarGate(self.compiler, self._post, self._refuse)

    def submit(self, transfer_id: str, grammar: str, emitted: tuple[int, ...] = ()) -> None:
        attempt = Attempt(
            request_id="r",
            transfer_id=transfer_id,
            model="",
            token_ids=(9, *emitted),
            num_prompt_tokens=1,
            choices=(0,),
            sampling=SamplingParams(max_tokens=8),
            deadline_s=10.0,
            grammar=grammar,
        )
        self.gate.submit(Submit(attempt))

    def cancel(self, transfer_id: str) -> None:
        self.gate.after(transfer_id, lambda: self._post(Cancel(transfer_id)))

    def until(self, count: int) -> None:
        for _ in range(count):
            assert self._done.acquire(timeout=DEADLINE_S)

    def names(self) -> list[str]:
        return [f"{type(m).__name__} {self._id(m)}" for m in self.posted]

    def _id(self, message: object) -> str:
        assert isinstance(message, Submit | Cancel)
        return message.attempt.transfer_id if isinstance(message, Submit) else message.transfer_id

    def _vocabulary(self) -> llguidance.LLTokenizer:
        assert self.open.wait(DEADLINE_S)
        return grammar_vocabulary(self._tokenizer, 259)

    def _post(self, message: object) -> None:
        self.posted.append(message)
        self._done.release()

    def _refuse(self, refusal: AttemptFailed) -> None:
        self.refused.append(refusal)
        self._done.release()


@pytest.fixture
def scene(byte_tokenizer: Tokenizer) -> Scene:
    return Scene(byte_tokenizer)


def test_others_pass_while_a_grammar_is_compiled_and_its_own_messages_follow_it(
    scene: Scene,
) -> None:
    scene.submit("slow", AB)
    scene.cancel("slow")
    scene.submit("free", "")
    scene.cancel("free")
    assert scene.names() == ["Submit free", "Cancel free"]
    scene.open.set()
    scene.until(4)
    assert scene.names()[2:] == ["Submit slow", "Cancel slow"]


def test_a_known_grammar_passes_at_once_with_the_state_of_what_was_emitted(
    scene: Scene, byte_tokenizer: Tokenizer
) -> None:
    scene.open.set()
    scene.compiler.compile(AB)
    a, b = byte_tokenizer.encode("ab")
    scene.submit("resumed", AB, (a,))
    (submit,) = scene.posted
    assert isinstance(submit, Submit) and submit.grammar is not None
    assert submit.grammar.completes(b) and not submit.grammar.problem


def test_a_long_output_is_replayed_by_the_thread(scene: Scene, byte_tokenizer: Tokenizer) -> None:
    scene.open.set()
    scene.compiler.compile(AB)
    scene.submit("long", AB, tuple(byte_tokenizer.encode("a" * 100)))
    scene.until(1)
    (submit,) = scene.posted
    assert isinstance(submit, Submit) and submit.grammar is not None and submit.grammar.problem


def test_a_grammar_that_does_not_compile_fails_its_attempt_only(scene: Scene) -> None:
    scene.open.set()
    scene.submit("bad", '{"grammars":[{"lark_grammar":"start: missing"}]}')
    scene.submit("good", AB)
    scene.until(2)
    assert scene.names() == ["Submit good"]
    (refusal,) = scene.refused
    assert (refusal.transfer_id, refusal.code) == ("bad", "invalid_request")
    assert "missing" in refusal.message and not refusal.retryable
    scene.cancel("bad")
    scene.until(1)
    assert scene.names()[-1] == "Cancel bad", "nothing is held for it any more"


def test_a_drain_waits_for_what_is_held(scene: Scene) -> None:
    told: list[str] = []
    scene.gate.when_free(lambda: told.append("at once"))
    scene.submit("slow", AB)
    free = threading.Event()
    scene.gate.when_free(free.set)
    assert told == ["at once"] and not free.is_set()
    scene.open.set()
    assert free.wait(DEADLINE_S)
    assert scene.names() == ["Submit slow"]
