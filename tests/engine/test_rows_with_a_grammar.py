"""Rows whose tokens follow a grammar, in both samplers, beside rows that don't."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from core.request import SamplingParams
from engine.grammar_masks import GrammarFailedError, GrammarMasks
from engine.greedy import only_largest
from engine.row_failure import NothingAllowedError, explained
from engine.sample_row import SampleRow
from engine.sampler import NonFiniteLogitsError, TokenSampler
from engine.token_history import TokenHistory
from text.structure.compiler import GrammarCompiler
from text.structure.grammar_text import choice_part, grammar_text, regex_part
from text.structure.state import GrammarState
from text.structure.vocabulary import grammar_vocabulary
from text.tokenizer import Tokenizer

MakeSampler = Callable[[int], TokenSampler]
EOS = 2
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
WARM = SamplingParams(max_tokens=8, temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def compiler(byte_tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(lambda: grammar_vocabulary(byte_tokenizer, 259))


@pytest.fixture
def state(compiler: GrammarCompiler) -> GrammarState:
    """Of a grammar that allows `a` or `b`, and then whatever letters."""
    return compiler.compile(grammar_text([regex_part("[ab][a-z]*")])).start()


def row(
    params: SamplingParams, state: GrammarState | None, *, position: int = 0, logits_row: int = 0
) -> SampleRow:
    history = TokenHistory((5,), (6, 7))
    return SampleRow(params, 0, position, history, logits_row, (EOS,), state)


def drawn(make_sampler: MakeSampler, rows: list[SampleRow], logits: torch.Tensor) -> list[int]:
    GrammarMasks().begin(rows)()
    return [s.token_id for s in make_sampler(logits.shape[1]).sample(logits, rows)]


def some_logits(num_rows: int = 1) -> torch.Tensor:
    return torch.randn(num_rows, 259, generator=torch.Generator().manual_seed(1)) * 3


def test_the_likeliest_allowed_token_is_taken(
    make_sampler: MakeSampler, state: GrammarState, byte_tokenizer: Tokenizer
) -> None:
    a, b = byte_tokenizer.encode("ab")
    logits = some_logits()
    logits[0, a], logits[0, b] = -20.0, -19.0
    assert drawn(make_sampler, [row(GREEDY, state)], logits) == [b]
    assert logits[0, a] == -20.0, "the model's logits are not changed"


@pytest.mark.parametrize(
    "params",
    [
        WARM,
        replace(WARM, top_k=3),
        replace(WARM, top_p=0.4),
        replace(WARM, min_p=0.2),
        replace(WARM, repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((30, 50.0),)),
        replace(WARM, temperature=2.0, min_tokens=4),
    ],
)
def test_only_allowed_tokens_are_drawn(
    make_sampler: MakeSampler,
    state: GrammarState,
    byte_tokenizer: Tokenizer,
    params: SamplingParams,
) -> None:
    a, b = byte_tokenizer.encode("ab")
    rows = [row(params, state, position=i % 4) for i in range(40)]
    assert set(drawn(make_sampler, rows, some_logits())) <= {a, b}


def test_other_rows_are_what_they_are_alone(make_sampler: MakeSampler, state: GrammarState) -> None:
    logits = some_logits(3)
    free = [row(GREEDY, None), row(WARM, None, logits_row=2, position=3)]
    alone = drawn(make_sampler, free, logits)
    mixed = drawn(make_sampler, [free[0], row(WARM, state, logits_row=1), free[1]], logits)
    assert [mixed[0], mixed[2]] == alone


def test_log_probabilities_are_the_model_s_own(
    make_sampler: MakeSampler, state: GrammarState
) -> None:
    """As in vLLM: of all tokens, allowed or not, before any edit."""
    logits = some_logits()
    one = row(replace(GREEDY, logprobs=3), state)
    GrammarMasks().begin([one])()
    (sampled,) = make_sampler(259).sample(logits, [one])
    expected = logits[0].log_softmax(-1)
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(float(expected[sampled.token_id]), abs=1e-4)
    assert [t for t, _ in sampled.logprobs.top] == expected.topk(3).indices.tolist()


def test_the_end_waits_for_min_tokens_unless_nothing_else_is_left(
    make_sampler: MakeSampler, compiler: GrammarCompiler, byte_tokenizer: Tokenizer
) -> None:
    (a,) = byte_tokenizer.encode("a")
    logits = some_logits()
    logits[0, EOS] = 50.0
    patient = replace(GREEDY, min_tokens=5)
    open_end = compiler.compile(grammar_text([regex_part("a*")])).start([a])
    assert drawn(make_sampler, [row(GREEDY, open_end, position=1)], logits) == [EOS]
    assert drawn(make_sampler, [row(patient, open_end, position=1)], logits) == [a]
    over = compiler.compile(grammar_text([choice_part(["a"])])).start([a])
    assert drawn(make_sampler, [row(patient, over, position=1)], logits) == [EOS]


def test_the_head_computes_all_logits_of_such_a_row(state: GrammarState) -> None:
    marks = only_largest([row(GREEDY, state), row(GREEDY, None, logits_row=1)], 2)
    assert marks is not None and marks.tolist() == [0, 1]


def test_choices_without_output_share_one_state_and_one_mask(
    make_sampler: MakeSampler, state: GrammarState, byte_tokenizer: Tokenizer
) -> None:
    rows = [SampleRow(WARM, choice, 0, None, 0, (EOS,), state) for choice in range(8)]
    assert set(drawn(make_sampler, rows, torch.zeros(1, 259))) == set(byte_tokenizer.encode("ab"))


def test_a_row_that_forbids_itself_is_told_from_one_without_finite_logits(
    make_sampler: MakeSampler, state: GrammarState
) -> None:
    logits = some_logits(3)
    logits[1] = torch.nan
    state.fill()
    state.mask.fill(0)
    rows = [row(GREEDY, None), row(GREEDY, None, logits_row=1), row(WARM, state, logits_row=2)]
    with pytest.raises(NonFiniteLogitsError) as caught:
        make_sampler(259).sample(logits, rows)
    assert caught.value.rows == (1, 2)
    told = explained(caught.value, rows, logits)
    assert isinstance(told, NothingAllowedError) and told.rows == (2,)
    alone = NonFiniteLogitsError((1,))
    assert explained(alone, rows, logits) is alone


def test_rows_whose_grammar_failed_are_named(
    compiler: GrammarCompiler, state: GrammarState, byte_tokenizer: Tokenizer
) -> None:
    (c,) = byte_tokenizer.encode("c")
    broken = compiler.compile(grammar_text([choice_part(["a"])])).start([c])
    rows = [row(GREEDY, state), row(GREEDY, broken), row(GREEDY, None), row(WARM, broken)]
    with pytest.raises(GrammarFailedError) as caught:
        GrammarMasks().begin(rows)()
    assert caught.value.rows == (1, 3)
