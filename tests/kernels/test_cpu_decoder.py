"""A step as one C++ call: the same bits as the same kernels op by op, for any family."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from fakes_cpu_kernels import cpu_kernels, kernel_threads
from fakes_decoder import (
    FAMILIES,
    MAX_POSITIONS,
    VOCAB_SIZE,
    Family,
    forward_op_by_op,
    logits_op_by_op,
    random_decoder,
)
from fakes_paged_batch import PagedSequences
from tandem_kernels import Decoder, Kernels, LayerCache, QuantizedWeight, StepProgram
from tandem_kernels.cpu.decoder import TIMED_WORK, CpuProgram
from tandem_kernels.reference import ReferenceKernels
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16]
BLOCK_SIZE, NUM_BLOCKS = 16, 80
PROMPT = torch.arange(MAX_POSITIONS) * 7 % VOCAB_SIZE


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    with kernel_threads(1):
        yield


def program_of(kernels: Kernels, decoder: Decoder) -> CpuProgram:
    program = kernels.program(decoder)
    assert isinstance(program, CpuProgram)
    return program


def new_caches(family: Family, dtype: torch.dtype) -> list[LayerCache]:
    shape = (NUM_BLOCKS, family.shape.num_kv_heads, BLOCK_SIZE, family.shape.head_dim)
    return [
        LayerCache(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))
        for _ in family.windows
    ]


class House:
    """Sequences, and the caches in which their KV lies."""

    def __init__(self, family: Family, dtype: torch.dtype) -> None:
        self.caches = new_caches(family, dtype)
        self._sequences = PagedSequences(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)

    def step(
        self, program: StepProgram, queries: list[tuple[str, int]], rows: Tensor | None = None
    ) -> Tensor:
        """Hidden states of a batch that adds so many tokens of the prompt to each sequence."""
        positions, meta = self._sequences.step(queries)
        return program.forward(PROMPT[positions], positions, meta, self.caches, rows)

    def step_op_by_op(
        self, kernels: Kernels, decoder: Decoder, queries: list[tuple[str, int]]
    ) -> Tensor:
        positions, meta = self._sequences.step(queries)
        return forward_op_by_op(kernels, decoder, PROMPT[positions], positions, meta, self.caches)


def assert_same_kv(one: House, other: House) -> None:
    for a, b in zip(one.caches, other.caches, strict=True):
        assert torch.equal(a.k, b.k)
        assert torch.equal(a.v, b.v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_program_has_the_bits_of_its_operations(
    name: str, num_threads: int, dtype: torch.dtype
) -> None:
    family, kernels = FAMILIES[name], cpu_kernels(dtype)
    decoder = random_decoder(kernels, family, dtype)
    program, steps, ops = program_of(kernels, decoder), House(family, dtype), House(family, dtype)
    for queries in (
        [("a", 50)],
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 1), ("c", 3)],
        [("b", 1), ("c", 290), ("d", 90)],
    ):
        expected = ops.step_op_by_op(kernels, decoder, queries)
        with kernel_threads(num_threads):
            hidden = steps.step(program, queries)
            logits = program.logits(hidden)
        assert torch.equal(hidden, expected)
        torch.testing.assert_close(logits, logits_op_by_op(decoder, hidden))
        if not family.shape.logits_softcap:
            assert torch.equal(logits, decoder.head(hidden))
        assert_same_kv(steps, ops)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_program_is_close_to_its_twin(name: str, dtype: torch.dtype) -> None:
    family, kernels, twin = FAMILIES[name], cpu_kernels(dtype), ReferenceKernels()
    program = program_of(kernels, random_decoder(kernels, family, dtype))
    exact = random_decoder(twin, family, torch.float32)
    queries = [("a", 120), ("b", 40)]
    hidden = House(family, dtype).step(program, queries)
    expected = House(family, torch.float32).step_op_by_op(twin, exact, queries)
    tolerance = 2e-4 if dtype == torch.float32 else 0.2
    error = (hidden.float() - expected).norm() / expected.norm()
    assert error < tolerance


@pytest.mark.parametrize("name", ["llama", "gemma", "phi"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_has_the_same_bits_in_any_batch_and_chunk(name: str, num_threads: int) -> None:
    family, dtype = FAMILIES[name], torch.bfloat16
    kernels = cpu_kernels(dtype)
    program = program_of(kernels, random_decoder(kernels, family, dtype))
    alone = House(family, dtype).step(program, [("a", 300)])
    with kernel_threads(num_threads):
        house = House(family, dtype)
        chunks = [
            house.step(program, [("a", 33)]),
            house.step(program, [("b", 60), ("a", 150)])[60:],
            house.step(program, [("a", 1), ("b", 1), ("c", 20)])[:1],
            house.step(program, [("b", 1), ("c", 100), ("a", 116)])[101:],
        ]
    assert torch.equal(torch.cat(chunks), alone)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    "rows", [[], [0], [1, 151], [151, 0], [1, 2, 70], [5, 5, 151], [*range(152)]]
)
def test_rows_that_were_asked_for_are_those_of_the_whole(rows: list[int], num_threads: int) -> None:
    family, dtype = FAMILIES["gemma"], torch.float32
    kernels = cpu_kernels(dtype)
    program = program_of(kernels, random_decoder(kernels, family, dtype))
    some, whole = House(family, dtype), House(family, dtype)
    queries = [("a", 1), ("b", 1), ("c", 100), ("d", 50)]
    expected = whole.step(program, queries)
    wanted = torch.tensor(rows, dtype=torch.int64)
    with kernel_threads(num_threads):
        hidden = some.step(program, queries, wanted)
    assert torch.equal(hidden, expected[wanted])
    assert_same_kv(some, whole)
    again = [("a", 1), ("b", 1), ("c", 1)]
    assert torch.equal(some.step(program, again), whole.step(program, again))


def test_logits_come_with_the_step() -> None:
    family, dtype = FAMILIES["gemma"], torch.bfloat16
    kernels = cpu_kernels(dtype)
    program = program_of(kernels, random_decoder(kernels, family, dtype))
    rows = torch.tensor([2, 9])
    positions, meta = PagedSequences(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE).step(
        [("a", 3), ("b", 7)]
    )
    call = (PROMPT[positions], positions, meta, new_caches(family, dtype), rows)
    assert torch.equal(program.step(*call), program.logits(program.forward(*call)))


def test_rows_that_only_take_the_likeliest_token_may_leave_other_logits_out() -> None:
    family, dtype = FAMILIES["llama"], torch.bfloat16
    kernels = cpu_kernels(dtype)
    values = torch.randint(-127, 128, (500, family.shape.hidden_size), dtype=torch.int8)
    weight = QuantizedWeight("int8", values, torch.rand(500, 1), None, values.shape[1])
    head = kernels.pack_linear(weight, None, out_dtype=torch.float32)
    plain = dataclasses.replace(random_decoder(kernels, family, dtype), head=head)
    program = program_of(kernels, plain)
    positions, meta = PagedSequences(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE).step([("a", 30)])
    call = (PROMPT[positions], positions, meta, new_caches(family, dtype), torch.arange(30))
    marks = torch.tensor([1] * 12 + [0] * 3 + [1] * 2 + [0] + [1] * 12, dtype=torch.uint8)
    every, found = program.step(*call), program.step(*call, marks)
    assert torch.equal(found.amax(-1), every.amax(-1))
    assert torch.equal(found.argmax(-1), every.argmax(-1))
    assert torch.equal(found[marks == 0], every[marks == 0])
    assert not torch.equal(found[:12], every[:12])
    assert torch.equal(program.step(*call), every)


@pytest.mark.parametrize(
    ("token", "position", "row", "message"),
    [
        (VOCAB_SIZE, 0, 0, "token id"),
        (-1, 0, 0, "token id"),
        (0, MAX_POSITIONS, 0, "position"),
        (0, 0, 3, "row"),
        (0, 0, -1, "row"),
    ],
)
def test_what_has_no_row_is_refused_before_anything_is_written(
    token: int, position: int, row: int, message: str
) -> None:
    family, dtype = FAMILIES["llama"], torch.float32
    kernels = cpu_kernels(dtype)
    program = program_of(kernels, random_decoder(kernels, family, dtype))
    caches = new_caches(family, dtype)
    _, meta = PagedSequences(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE).step([("a", 3)])
    tokens, positions = torch.tensor([1, 2, token]), torch.tensor([0, 1, position])
    with pytest.raises(IndexError, match=message):
        program.forward(tokens, positions, meta, caches, torch.tensor([row]))
    assert not any(cache.k.any() or cache.v.any() for cache in caches)


@pytest.mark.parametrize("num_tokens", [1, 200])
def test_timings_add_up_over_steps(num_tokens: int) -> None:
    family, dtype = FAMILIES["llama"], torch.float32
    kernels = cpu_kernels(dtype)
    program = program_of(kernels, random_decoder(kernels, family, dtype))
    house = House(family, dtype)
    program.start_timings()
    assert program.timings() == dict.fromkeys(TIMED_WORK, 0)
    with kernel_threads(2):
        program.logits(house.step(program, [("a", num_tokens)]))
        first = program.timings()
        house.step(program, [("a", num_tokens)])
    assert all(value >= 0 for value in first.values())
    assert first["attention"] > 0 and first["head"] > 0
    assert all(program.timings()[work] >= first[work] for work in TIMED_WORK)
    program.stop_timings()
    house.step(program, [("a", 1)])
