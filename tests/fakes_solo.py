"""The yardstick of golden tests: every request alone on an engine without network or cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fakes_generation import Generation
from fakes_golden import Answer, Ask, ChoiceAnswer, Floats

from core.config import load_config
from decode_worker.offline import OfflineEngine
from model.loader import load_model
from model.tensor_parallel import TensorParallel
from text.card import ModelCard

SETTINGS = [
    "parallel.num_threads=1",
    "model.dtype=float32",
    "model.max_model_len=512",
    "cache.num_blocks=128",
    "cache.enable_prefix_caching=false",
    "scheduler.max_num_seqs=8",
    "scheduler.max_num_batched_tokens=512",
]


class Solo:
    """Answers one request at a time, each once; later callers get what was answered before."""

    def __init__(self, card: ModelCard, *overrides: str) -> None:
        """`overrides` name the card's model, if it isn't the default one."""
        self._card = card
        config = load_config(environ={}, overrides=[*SETTINGS, *overrides])
        self._engine = OfflineEngine.load(config)
        self._answers: dict[Ask, Answer] = {}

    def answer(self, ask: Ask) -> Answer:
        if ask not in self._answers:
            self._answers[ask] = Answer([self._choice(ask, choice) for choice in range(ask.n)])
        return self._answers[ask]

    def _choice(self, ask: Ask, choice: int) -> ChoiceAnswer:
        """Computed from the prompt on, so that nothing is shared between choices."""
        attempt = ask.attempt((choice,))
        events = self._engine.generate([attempt])[attempt.transfer_id, choice]
        reason = events[-1].finish_reason
        assert reason is not None
        return ChoiceAnswer(
            [event.token_id for event in events],
            [event.logprobs for event in events if event.logprobs is not None],
            reason.value,
        )

    def next_logits(self, token_ids: Sequence[int]) -> Floats:
        """Of the token after these, [vocab]: by the model alone, without scheduler or sampler."""
        model = load_model(
            self._card,
            dtype=torch.float32,
            device=torch.device("cpu"),
            tp=TensorParallel.single(),
        )
        (logits,) = Generation(model, self._card).step([("it", list(token_ids))])
        numbers: Floats = logits[-1].double().numpy()
        return numbers
