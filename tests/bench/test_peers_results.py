"""Measurements on disk, and what is made of them: ratios, bars, tables."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.peers.bars import all_bars, verdicts
from bench.peers.contenders import all_contenders, chosen_contenders
from bench.peers.report import PeersReport, peers_report
from bench.peers.results import Measurement, Results
from bench.peers.summary import Figure, figures_of, ratio
from bench.peers.tables import bars_table, memory_table, number, peers_table
from bench.peers.workloads import all_workloads, chosen
from bench.report import read_json, write_json
from core.errors import ConfigError

SETTINGS = {"seed": "0"}
TPOT = Figure("stream", "tpot_ms", "TPOT")


def stream(contender: str, repeat: int, tpot_ms: float) -> Measurement:
    return Measurement(contender, "stream", repeat, {"tpot_ms": tpot_ms})


def test_a_run_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    results = Results.begin(tmp_path, SETTINGS, resume=False)
    results.add(stream("a", 0, 10.0))
    results.add(Measurement("a", "stream", 1, problem="HTTP 500"))
    with (tmp_path / "measurements.jsonl").open("a") as file:
        file.write('{"contender": "a", "work')
    again = Results.begin(tmp_path, SETTINGS, resume=True)
    assert again.has("a", "stream", 0)
    assert not again.has("a", "stream", 1), "a problem is tried again"
    again.add(stream("a", 1, 12.0))
    third = Results.begin(tmp_path, SETTINGS, resume=True)
    assert third.measurements == (stream("a", 0, 10.0), stream("a", 1, 12.0))


def test_measurements_are_neither_overwritten_nor_mixed(tmp_path: Path) -> None:
    Results.begin(tmp_path, SETTINGS, resume=False)
    with pytest.raises(ConfigError, match="--resume"):
        Results.begin(tmp_path, SETTINGS, resume=False)
    with pytest.raises(ConfigError, match="other settings"):
        Results.begin(tmp_path, {"seed": "1"}, resume=True)
    with (tmp_path / "measurements.jsonl").open("a") as file:
        file.write("nonsense\n{}\n")
    with pytest.raises(ConfigError, match="line 2"):
        Results.begin(tmp_path, SETTINGS, resume=True)


def test_a_ratio_is_the_median_of_pairs_side_by_side() -> None:
    made = [stream("a", r, ms) for r, ms in enumerate((10.0, 20.0, 90.0))]
    made += [stream("b", r, ms) for r, ms in enumerate((10.0, 10.0, 30.0))]
    assert ratio(made, TPOT, "a", "b") == 2.0
    assert ratio(made[:1] + made[4:], TPOT, "a", "b") == 10 / 20, "no pair: of medians"
    assert ratio(made, TPOT, "a", "c") is None


def test_a_bar_is_kept_missed_or_not_measured() -> None:
    made = [
        stream("tandem bf16", 0, 10.0),
        stream("llama.cpp bf16", 0, 10.0),
        stream("vllm bf16", 0, 12.0),
        Measurement("tandem 1P+1D bf16", "start", 0, {"start_s": 11.0}),
    ]
    found = {verdict.text: verdict.kept for verdict in verdicts(made, all_bars())}
    assert found["tandem bf16, stream, tpot_ms: at most 1 x llama.cpp bf16's"] is True
    assert found["tandem bf16, stream, tpot_ms: at most 0.6 x vllm bf16's"] is False
    assert found["tandem int8, stream, tpot_ms: at most 0.7 x llama.cpp Q8_0's"] is None
    assert found["tandem 1P+1D bf16, start, start_s: at most 12"] is True


def test_every_bar_names_contenders_that_take_its_workload_and_a_figure_of_it() -> None:
    contenders = {contender.name: contender for contender in all_contenders()}
    shown = {(figure.workload, figure.name) for figure in figures_of(all_workloads())}
    for bar in all_bars():
        assert (bar.workload, bar.figure) in shown, bar.text
        for name in filter(None, (bar.contender, bar.over)):
            assert bar.workload == "memory" or contenders[name].takes(bar.workload), bar.text


def report() -> PeersReport:
    made = [
        stream("vllm bf16", 0, 20.0),
        stream("tandem bf16", 0, 10.0),
        Measurement("tandem bf16", "memory", 0, {"total_mib": 900.0}, None, {"router (7)": 900.0}),
        Measurement("vllm bf16", "quiet", 0, {"busy_share": 0.25}),
        Measurement("vllm bf16", "start", 0, problem="HTTP 500"),
    ]
    return peers_report(
        made,
        chosen_contenders(["vllm bf16", "tandem bf16", "llama.cpp bf16"]),
        chosen(all_workloads(), ["stream", "start"]),
        {"llama.cpp bf16": "not installed"},
        SETTINGS,
    )


def test_the_table_holds_every_server_side_by_side_with_ratios() -> None:
    output = StringIO()
    console = Console(file=output, width=160)
    console.print(peers_table(report()))
    console.print(memory_table(report()))
    console.print(bars_table(report().bars))
    lines = output.getvalue().splitlines()
    (ours,) = (line for line in lines if "  tandem bf16" in line and "10.0" in line)
    (theirs,) = (line for line in lines if "  vllm bf16" in line and "20.0" in line)
    assert "0.50" in ours and "2.00" in theirs
    assert any("router (7)" in line for line in lines)
    assert any("kept" in line for line in lines)


def test_the_report_says_what_is_missing_and_comes_back_from_json(tmp_path: Path) -> None:
    made = report()
    assert made.bases == ("tandem bf16", "vllm bf16")
    assert made.problems == ("vllm bf16, start, run 1: HTTP 500",)
    assert made.busiest_share == 0.25
    write_json(tmp_path / "report.json", made)
    assert read_json(tmp_path / "report.json", PeersReport) == made


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (9.5, "9.50"), (223.4, "223"), (2384.2, "2,384")]
)
def test_numbers_show_three_digits(value: float, text: str) -> None:
    assert number(value) == text
