"""Whether a server computed what it was asked to: nothing else may be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.record import RequestRecord

# Chunks may hold several tokens, or wait for the rest of a character; but a server that answers in
# lumps has no token times to compare.
_LEAST_CHUNKS_PER_TOKEN = 0.5


def length_problem(
    records: Sequence[RequestRecord], asked: Mapping[int, tuple[int, int]]
) -> str | None:
    """What is wrong with the first wrong answer; None if all are as asked.

    `asked` holds prompt and output tokens by the request's index. A request that failed is wrong.
    """
    problems = (_problem(record, *asked[record.index]) for record in records)
    return next((problem for problem in problems if problem is not None), None)


def _problem(record: RequestRecord, input_len: int, output_len: int) -> str | None:
    if record.error is not None:
        return record.error
    counted = (record.num_prompt_tokens, record.num_output_tokens)
    if counted != (input_len, output_len):
        return f"asked for {input_len} in, {output_len} out; usage says {counted[0]}, {counted[1]}"
    if record.num_cached_tokens > input_len // 4:
        return f"{record.num_cached_tokens} of {input_len} prompt tokens came from a cache"
    num_chunks = len(record.chunk_times_s)
    if not _LEAST_CHUNKS_PER_TOKEN * output_len <= num_chunks <= output_len + 1:
        return f"{output_len} tokens came in {num_chunks} chunks"
    return None
