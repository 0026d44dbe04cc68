"""Measurements on disk, and what is made of them: ratios, bars, tables."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from bench.peers.bars import all_bars, verdicts
from bench.peers.command import wanted_or_measured
from bench.peers.contenders import all_contenders, chosen_contenders
from bench.peers.memory_measurement import with_earlier
from bench.peers.report import PeersReport, peers_report
from bench.peers.results import Measurement, Results
from bench.peers.summary import Figure, figures_of, ratio
from bench.peers.tables import bars_table, memory_tables, number, peers_table
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


def memory(contender: str, repeat: int, **figures: float) -> Measurement:
    """Of one process."""
    most, start = figures["total_mib"], figures.get("start_mib")
    return Measurement(
        contender,
        "memory",
        repeat,
        {"num_processes": 1.0, **figures},
        processes_mib={"router (7)": most},
        start_processes_mib={} if start is None else {"router (7)": start},
    )


def shown(*tables: Table) -> list[str]:
    """The lines of the tables in a wide terminal."""
    output = StringIO()
    console = Console(file=output, width=200)
    for table in tables:
        console.print(table)
    return output.getvalue().splitlines()


def test_the_bar_of_memory_is_for_the_start_and_load_is_told_beside_it() -> None:
    name = "tandem 1P+1D bf16"
    made = [memory(name, r, start_mib=1_500.0 + r, total_mib=3_000.0) for r in range(3)]
    (verdict,) = (v for v in verdicts(made, all_bars()) if v.bar.workload == "memory")
    assert verdict.text == f"{name}, memory, start_mib: at most 2384.19"
    assert (verdict.value, verdict.kept, verdict.beside) == (1_501.0, True, 3_000.0)
    (line,) = (line for line in shown(bars_table([verdict])) if "1,501" in line)
    assert "3,000 under load" in line


def test_older_measurements_of_memory_are_read_and_their_start_counts_as_not_measured(
    tmp_path: Path,
) -> None:
    Results.begin(tmp_path, SETTINGS, resume=False)
    with (tmp_path / "measurements.jsonl").open("a") as file:
        file.write(
            '{"contender":"tandem 1P+1D bf16","workload":"memory","repeat":0,'
            '"figures":{"total_mib":900.0,"num_processes":1.0},"problem":null,'
            '"processes_mib":{"router (7)":900.0},"took_s":1.0}\n'
        )
    made = Results.begin(tmp_path, SETTINGS, resume=True).measurements
    (verdict,) = (v for v in verdicts(made, all_bars()) if v.bar.workload == "memory")
    assert (verdict.value, verdict.kept, verdict.beside) == (None, None, 900.0)
    read = peers_report(made, all_contenders(), all_workloads(), {}, SETTINGS)
    assert read.processes_mib and not read.start_processes_mib


def test_a_turn_that_goes_on_keeps_its_start_and_the_larger_load() -> None:
    first = memory("a", 0, start_mib=500.0, total_mib=900.0)
    later = memory("a", 0, start_mib=510.0, total_mib=600.0)
    assert with_earlier(later, None) == later
    assert with_earlier(later, first) == first
    assert with_earlier(later, memory("a", 0, total_mib=550.0)) == later


def test_every_workload_has_its_ratios_over_both_peers_and_tells_its_repeats() -> None:
    names = ["tandem bf16", "vllm bf16", "llama.cpp bf16"]
    figures = figures_of(all_workloads())
    made = [
        Measurement(
            name,
            workload,
            repeat,
            {figure.name: float(factor) for figure in figures if figure.workload == workload},
            processes_mib={"one (1)": 1.0},
        )
        for factor, name in enumerate(names, start=2)
        for workload in dict.fromkeys(figure.workload for figure in figures)
        for repeat in range(3)
    ]
    found = peers_report(made, chosen_contenders(names), all_workloads(), {}, SETTINGS)
    ours = [summary for summary in found.summaries if summary.contender == "tandem bf16"]
    assert [summary.figure for summary in ours] == list(figures)
    for summary in ours:
        assert summary.ratios == {"vllm bf16": 2 / 3, "llama.cpp bf16": 2 / 4}
    rows = [line.split("\u2502") for line in shown(peers_table(found)) if "  tandem bf16" in line]
    assert len(rows) == len(figures)
    for row in rows:
        assert [cell.strip() for cell in row[4:-1]] == ["3", "", "0.67", "0.50"]


def test_a_report_shows_what_an_earlier_run_measured_too() -> None:
    wanted = chosen(all_workloads(), ["stream"])
    both = wanted_or_measured(all_workloads(), wanted, {"start", "memory"})
    assert [workload.name for workload in both] == ["start", "stream"]


def report() -> PeersReport:
    made = [
        stream("vllm bf16", 0, 20.0),
        stream("tandem bf16", 0, 10.0),
        memory("tandem bf16", 0, start_mib=700.0, total_mib=900.0),
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
    lines = shown(peers_table(report()), *memory_tables(report()), bars_table(report().bars))
    (ours,) = (line for line in lines if "  tandem bf16" in line and "10.0" in line)
    (theirs,) = (line for line in lines if "  vllm bf16" in line and "20.0" in line)
    assert "0.50" in ours and "2.00" in theirs
    assert [line.split()[-2] for line in lines if "router (7)" in line] == ["700", "900"]
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
