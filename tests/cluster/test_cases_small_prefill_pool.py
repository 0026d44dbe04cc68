"""A prefill pool smaller than two prompts, and a link that is slow: one after the other, all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes_byte_model import write_byte_model
from fakes_cases import CaseHouse, ask, case_house, check_same, settings, some_tokens, together

from core import metric_names as names
from engine.role import Cancel

NUM_REQUESTS = 4
NUM_BLOCKS = 40
PROMPT_TOKENS = 30 * 16 - 3
"""30 blocks: the pool has room for one prompt and a third."""
CHUNK = 64
NUM_CHUNKS = -(-PROMPT_TOKENS // CHUNK)
SPEC = "kv_send:delay=0.03"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseHouse]:
    model = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    overrides = (
        "model.max_model_len=512",
        f"scheduler.prefill_chunk_tokens={CHUNK}",
        f"kv_transfer.max_message_bytes={4 * 2 * 2 * 2 * 16 * 16 * 4}",
        f"faults.spec={SPEC}",
    )
    small = settings(model, *overrides, f"cache.num_blocks={NUM_BLOCKS}")
    with case_house(small, decode_config=settings(model, *overrides)) as made:
        yield made


@pytest.mark.parametrize("leaving", [0, 2])
def test_prompts_take_turns_while_a_slow_link_keeps_the_blocks(
    house: CaseHouse, leaving: int
) -> None:
    """Nobody waits for ever, also if the first of them are given up in the middle."""
    prompts = [some_tokens(PROMPT_TOKENS, seed=10 * leaving + i) for i in range(NUM_REQUESTS)]
    steps, posted = house.p.steps, house.p.posted

    async def test() -> None:
        for prompt in prompts[:leaving]:
            posted.clear()
            steps.hold(after=NUM_CHUNKS // 2)
            async with house.asking(prompt, max_tokens=9):
                await steps.until_held()
                await house.until(lambda: house.blocks("decode-0", "importing") > 0)
            await posted.until(Cancel)
            steps.release()
        staying = prompts[leaving:]
        answers = await together([ask(house.router, p, max_tokens=9) for p in staying])
        await house.check_whole()
        assert await house.metric(names.RETRIES_TOTAL) == 0
        for prompt, answer in zip(staying, answers, strict=True):
            check_same(answer, await house.ask(prompt, max_tokens=9, cache_salt="alone"))
        await house.check_whole()
        await house.until(lambda: house.blocks("prefill-0", "cached", "free") == NUM_BLOCKS)

    house.run(test())
