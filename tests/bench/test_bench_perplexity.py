"""Perplexity: windows, likelihoods over the paged cache, and where texts come from."""

from __future__ import annotations

import math
from pathlib import Path

import fakes_tiny_model
import numpy as np
import pytest
import torch

from bench.perplexity import (
    Perplexity,
    PerplexityReport,
    for_one_sequence,
    token_nlls,
    windows,
)
from bench.texts import pydoc_text, read_texts
from cli.calibrate import cut
from cli.eval import report_text
from core.config import Config
from core.errors import ConfigError
from engine.runner import ModelRunner
from engine.sampler import Sampler
from kv_cache.storage import KVStorage
from model.loader import load_model
from model.tensor_parallel import TensorParallel


def test_windows_hold_every_token_once_and_never_one_alone() -> None:
    assert windows(range(10), 4) == [range(0, 4), range(4, 8), range(8, 10)]
    assert windows(range(9), 4) == [range(0, 4), range(4, 8)]
    assert windows(range(3), 4) == [range(3)]


def test_likelihoods_over_chunks_of_a_paged_cache_equal_transformers(tmp_path: Path) -> None:
    tiny = fakes_tiny_model.llama(tmp_path, max_position_embeddings=512)
    device = torch.device("cpu")
    model = load_model(tiny.card, dtype=torch.float32, device=device, tp=TensorParallel.single())
    storage = KVStorage(tiny.card.kv_spec(16, "float32"), 32)
    runner = ModelRunner(model, storage, Sampler(tiny.card.vocab_size), device=device)
    token_ids = torch.randint(0, 131, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    nlls = token_nlls(runner, token_ids, 16)
    expected = torch.nn.functional.cross_entropy(
        tiny.logits(token_ids)[:-1], torch.tensor(token_ids[1:]), reduction="none"
    )
    np.testing.assert_allclose(nlls, expected.numpy(), atol=1e-4)
    # Blocks that hold another sequence's KV change nothing
    assert np.array_equal(token_nlls(runner, token_ids, 16), nlls)


def test_the_pool_is_for_one_sequence() -> None:
    config = for_one_sequence(Config(), 100)
    assert config.cache.num_blocks == 7
    assert config.scheduler.max_num_seqs == 1


def found(mean_nll: float, precision: str) -> Perplexity:
    return Perplexity("tiny", precision, 100, 98, 50, mean_nll, 3.2)


def test_a_report_says_how_much_worse_the_measured_precision_is() -> None:
    report = PerplexityReport(found(math.log(10.1), "int8"), found(math.log(10), "float32"))
    text = report_text(report)
    assert "tiny, int8: perplexity 10.1000 (98 tokens in windows of 50, 3 s)" in text
    assert text.endswith("difference +1.000%")
    assert "difference" not in report_text(PerplexityReport(found(1.0, "int8"), None))


def test_texts_come_whole_or_line_by_line(tmp_path: Path) -> None:
    plain, lines = tmp_path / "book.txt", tmp_path / "prompts.jsonl"
    plain.write_text("one\n\ntwo")
    assert read_texts(plain) == ["one\n\ntwo"]
    chat = '{"messages": [{"role": "user", "content": "c"}, {"role": "system", "content": "d"}]}'
    lines.write_text(f'{{"text": "a"}}\n\n{{"prompt": "b"}}\n{chat}\n')
    assert read_texts(lines) == ["a", "b", "c\nd"]


def test_python_brings_a_text_of_its_own() -> None:
    text = pydoc_text()
    assert len(text) > 300_000
    assert 'The "assert" statement' in text


@pytest.mark.parametrize("line", ["{", "[1]", '{"text": 3}', '{"messages": [{"content": 1}]}'])
def test_lines_without_text_are_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "a"}\n' + line)
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:2"):
        read_texts(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_texts(tmp_path / "none.txt")


def test_texts_are_cut_into_windows_until_there_are_enough_tokens() -> None:
    assert cut([[1, 2, 3, 4, 5], [6, 7, 8]], 2, 6) == [[1, 2], [3, 4], [5], [6]]
    assert cut([[]], 2, 6) == []
