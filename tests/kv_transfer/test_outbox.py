from __future__ import annotations

import asyncio
import threading

from kv_transfer.outbox import Outbox

LONG_S = 1000.0


def test_messages_of_one_thread_keep_their_order_and_the_rest_is_said_before_the_end() -> None:
    async def say() -> list[int]:
        outbox = Outbox(asyncio.get_running_loop(), heartbeat=-1, timeout_s=LONG_S)

        def talk() -> None:
            for number in range(100):
                outbox.put(number)
            outbox.close()
            outbox.put(100)

        thread = threading.Thread(target=talk)
        thread.start()
        said = [message async for messages in outbox.stream() for message in messages]
        thread.join()
        return said

    assert asyncio.run(say()) == list(range(100))


def test_what_is_there_to_be_said_at_once_is_said_at_once() -> None:
    async def say() -> list[list[int]]:
        outbox = Outbox(asyncio.get_running_loop(), heartbeat=-1, timeout_s=LONG_S)
        for number in range(3):
            outbox.put(number)
        outbox.close()
        return [messages async for messages in outbox.stream()]

    assert asyncio.run(say()) == [[0, 1, 2]]


def test_silence_is_filled_with_heartbeats() -> None:
    async def listen() -> list[str]:
        outbox = Outbox(asyncio.get_running_loop(), heartbeat="alive", timeout_s=0.01)
        said: list[str] = []
        async for messages in outbox.stream():
            said.extend(messages)
            if len(said) == 2:
                outbox.put("word")
            if "word" in messages:
                outbox.close()
        return said

    said = asyncio.run(listen())
    assert said[:2] == ["alive", "alive"] and "word" in said
    assert set(said) == {"alive", "word"}


def test_an_outbox_outlives_its_loop_quietly() -> None:
    loop = asyncio.new_event_loop()
    outbox = Outbox(loop, heartbeat=0, timeout_s=LONG_S)
    loop.close()
    outbox.put(1)
    outbox.close()
