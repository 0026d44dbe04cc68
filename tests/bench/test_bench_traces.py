"""Readers of trace files, on small samples written here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.traces import TraceError, TraceRow, read_trace


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_an_azure_trace_has_lengths_and_times_from_its_first_row(tmp_path: Path) -> None:
    file = written(
        tmp_path / "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.5000000,374,44\n"
        "2023-11-16 18:15:50.7500000,396,109\n"
        "2023-11-16 18:15:51.0000000,12,0\n",
    )
    assert read_trace(file) == [TraceRow(374, 44, 0.0), TraceRow(396, 109, 4.25)]


def test_a_table_of_lengths_has_no_times(tmp_path: Path) -> None:
    text = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n"
    assert read_trace(written(tmp_path / "lengths.csv", text)) == [TraceRow(3772, 54)]


def test_a_mooncake_trace_keeps_its_blocks_and_its_milliseconds(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 3000, "input_length": 700, "output_length": 6, "hash_ids": [0, 2]},
    ]
    file = written(tmp_path / "mooncake.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    assert read_trace(file) == [
        TraceRow(600, 5, 0.0, block_ids=(0, 1), block_len=512),
        TraceRow(700, 6, 3.0, block_ids=(0, 2), block_len=512),
    ]


def test_generic_lines_give_a_prompt_or_its_length(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Twelve chars", "output_len": 5},
        {"prompt_len": 80, "output_len": 6, "timestamp_s": 1.5},
    ]
    file = written(tmp_path / "generic.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_trace(file) == [TraceRow(3, 5, text="Twelve chars"), TraceRow(80, 6, 1.5)]


def test_conversations_give_their_first_turn_and_the_length_of_its_answer(tmp_path: Path) -> None:
    conversations = [
        {"conversations": [{"from": "human", "value": "Hello?"}, {"from": "gpt", "value": "Yes."}]},
        {"conversations": [{"from": "human", "value": "Nobody answered"}]},
    ]
    file = written(tmp_path / "chats.json", json.dumps(conversations))
    assert read_trace(file) == [TraceRow(2, 1, text="Hello?")]


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.csv", "time,tokens\n1,2\n", "line 2"),
        ("a.csv", "num_prefill_tokens,num_decode_tokens\n5,many\n", "line 2"),
        ("a.jsonl", '{"prompt_len": 1, "output_len": 2}\n{"prompt_len": -1}\n', "line 2"),
        ("a.jsonl", "not json\n", "line 1"),
        ("a.json", '[{"turns": []}]', "a.json"),
        ("a.txt", "1 2\n", "expected a .csv"),
        ("a.jsonl", "\n", "no usable rows"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_where_it_fails(
    tmp_path: Path, name: str, text: str, part: str
) -> None:
    with pytest.raises(TraceError, match=part):
        read_trace(written(tmp_path / name, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="gone.csv"):
        read_trace(tmp_path / "gone.csv")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        read_trace(tmp_path / "a.jsonl")
