"""Files of requests for tests of batches, and waiting for what becomes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import openai
from fakes_house import MODEL
from fakes_pull import DEADLINE_S
from openai.types import Batch

FINAL = {"failed", "completed", "expired", "cancelled"}
LOOK_EVERY_S = 0.02


def line(custom_id: str, url: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
    """One request, which is answered at once."""
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 3, "seed": 1} | fields
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(lines: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


async def begin(
    client: openai.AsyncOpenAI, data: bytes, endpoint: Any = "/v1/completions", **more: Any
) -> Batch:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
    )


async def ended(client: openai.AsyncOpenAI, batch_id: str, deadline_s: float = DEADLINE_S) -> Batch:
    """The batch when it has come to an end."""
    async with asyncio.timeout(deadline_s):
        while (batch := await client.batches.retrieve(batch_id)).status not in FINAL:
            await asyncio.sleep(LOOK_EVERY_S)
    return batch


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Lines of an output or error file; none without one."""
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(each) for each in content.text.splitlines()]
