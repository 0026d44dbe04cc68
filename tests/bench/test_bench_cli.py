"""`tandem bench` from end to end, against a server on a real socket; reports are validated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from fakes_openai_server import FakeOpenAIServer, server_in_a_thread
from typer.testing import CliRunner, Result

from bench.batching import BatchingReport
from bench.cli import app
from bench.handoff import HandoffReport
from bench.report import ServeReport, read_json, write_json
from bench.runner import LoopTimer
from bench.step import PARTS, DecodeCase, PrefillCase, StepReport
from bench.suite import SuitePlan, SuiteReport, compare_layouts, compare_strategies
from bench.suite_command import show as show_suite
from core.clock import MonotonicClock
from core.errors import ConfigError
from core.roofline import Roofline

METRICS = 'tandem_kv_unfilled_slots{w="a"} 24\ntandem_worker_running_sequences{w="a"} 2\n'


def invoke(*arguments: str) -> Result:
    """Runs the command; errors are raised, as the `tandem` command would see them."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    if isinstance(result.exception, Exception):
        raise result.exception
    return result


def test_serve_measures_every_load_of_a_sweep_and_writes_what_it_prints(tmp_path: Path) -> None:
    json_file, plot = tmp_path / "report.json", tmp_path / "plot.png"
    with server_in_a_thread(FakeOpenAIServer()) as server:
        result = invoke(
            *("serve", "--base-url", server.base_url, "--sweep", "concurrency=1,4"),
            *("--num-requests", "8", "--output-len", "6", "--slo", "ttft=60s", "--warmup", "2"),
            *("--ignore-eos", "--json", str(json_file), "--plot", str(plot)),
        )
    report = read_json(json_file, ServeReport)
    assert result.exit_code == 0
    assert "concurrency=4" in result.stdout and "8/8" in result.stdout
    assert [point.load.label for point in report.points] == ["concurrency=1", "concurrency=4"]
    assert [point.num_output_tokens for point in report.points] == [48, 48]
    assert [point.slo_attainment for point in report.points] == [1.0, 1.0]
    assert plot.read_bytes().startswith(b"\x89PNG")
    # One asks for the model's name; then as many as are ever needed at once, kept in between.
    assert server.num_connections == 1 + 4
    assert len(server.requests) == 2 + 2 * 8
    assert all(request["ignore_eos"] is True for request in server.requests)


def test_equal_seeds_send_equal_requests_and_other_seeds_others() -> None:
    sent: list[list[dict[str, object]]] = []
    for seed in ("1", "1", "2"):
        with server_in_a_thread(FakeOpenAIServer()) as server:
            invoke(
                *("serve", "--base-url", server.base_url, "--seed", seed, "--concurrency", "1"),
                *("--num-requests", "4", "--output-range", "1:8", "--input-range", "1:8"),
            )
        sent.append(server.requests)
    assert sent[0] == sent[1] != sent[2]


def test_an_open_loop_sends_words_to_the_chat_endpoint() -> None:
    with server_in_a_thread(FakeOpenAIServer()) as server:
        result = invoke(
            *("serve", "--base-url", server.base_url, "--endpoint", "chat", "--input-len", "9"),
            *("--request-rate", "2000", "--num-requests", "5", "--warmup", "0"),
        )
    assert result.exit_code == 0 and "5/5" in result.stdout
    messages = [request["messages"] for request in server.requests]
    assert all(isinstance(m, list) and len(m[0]["content"].split()) == 9 for m in messages)


def test_a_trace_is_replayed_with_its_shared_prefixes(tmp_path: Path) -> None:
    rows = [
        {"timestamp": t, "input_length": 520, "output_length": 9, "hash_ids": [7, block]}
        for t, block in ((0, 1), (2000, 2))
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    with server_in_a_thread(FakeOpenAIServer()) as server:
        invoke(
            *("serve", "--base-url", server.base_url, "--trace", str(trace)),
            *("--trace-speed", "1000", "--max-output-len", "4", "--warmup", "0"),
        )
    one, two = (request["prompt"] for request in server.requests)
    assert isinstance(one, list) and isinstance(two, list)
    assert len(one) == len(two) == 520
    assert one[:512] == two[:512] and one[512:] != two[512:]
    assert [request["max_tokens"] for request in server.requests] == [4, 4]


def test_errors_are_listed_and_a_load_without_success_fails_the_command() -> None:
    with server_in_a_thread(FakeOpenAIServer(fail_requests=frozenset(range(9)))) as server:
        result = invoke(
            *("serve", "--base-url", server.base_url, "--num-requests", "4", "--warmup", "0")
        )
    assert result.exit_code == 1
    assert "4 x HTTP 429 rate_limit_exceeded" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "1", "--request-rate", "2"],
        ["--endpoint", "chat", "--prompt-kind", "tokens"],
        ["--slo", "fast"],
        ["--base-url", "host:8000"],
        ["--trace", "gone.csv"],
        ["--trace-speed", "2"],
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_sent(
    arguments: list[str],
) -> None:
    with pytest.raises(ConfigError):
        invoke("serve", *arguments)


def test_batching_compares_both_strategies_on_the_same_wanted_tokens(tmp_path: Path) -> None:
    json_file = tmp_path / "batching.json"
    with server_in_a_thread(FakeOpenAIServer()) as server:
        result = invoke(
            *("batching", "--base-url", server.base_url, "--concurrency", "4"),
            *("--num-requests", "8", "--repeats", "2", "--json", str(json_file)),
        )
    report = read_json(json_file, BatchingReport)
    assert result.exit_code == 0 and "ratio" in result.stdout
    assert [run.strategy for run in report.runs] == ["static", "continuous"] * 2
    assert len({run.num_wanted_tokens for run in report.runs}) == 1
    static, continuous = report.runs[:2]
    assert static.num_computed_tokens > static.num_wanted_tokens
    assert continuous.num_computed_tokens == continuous.num_wanted_tokens
    warm_up, groups = server.requests[:4], server.requests[4:12]
    assert len(warm_up) == 4
    assert len({request["max_tokens"] for request in groups[:4]}) == 1
    assert len({request["max_tokens"] for request in groups[4:]}) == 1


def test_handoff_puts_two_servers_side_by_side(tmp_path: Path) -> None:
    json_file = tmp_path / "handoff.json"
    fast = FakeOpenAIServer(timings={"handoff_s": 0.01})
    slow = FakeOpenAIServer(timings={"handoff_s": 0.04})
    with server_in_a_thread(fast), server_in_a_thread(slow):
        result = invoke(
            *("handoff", "--base-url", fast.base_url, "--base-url-off", slow.base_url),
            *("--num-requests", "2", "--repeats", "2", "--json", str(json_file)),
        )
    report = read_json(json_file, HandoffReport)
    assert "handoff_s" in result.stdout
    on, off = report.sides
    assert (on.num_requests, off.num_requests) == (4, 4)
    assert on.reported_s["handoff_s"].p50 == 0.01
    assert off.reported_s["handoff_s"].p50 == 0.04
    assert [r["prompt"] for r in fast.requests] == [r["prompt"] for r in slow.requests]
    prompts = [request["prompt"] for request in fast.requests]
    assert all(isinstance(prompt, list) and len(prompt) == 1024 for prompt in prompts)
    assert len({str(prompt) for prompt in prompts}) == len(prompts)


def step_report() -> StepReport:
    """One case of each kind, at half of what the machine can do."""
    limits = Roofline(2e9, 4e9, "bfloat16")
    parts_s = dict.fromkeys(PARTS, 0.1)
    decode = DecodeCase(8, 128, 5, 0.6, 0.6, parts_s, 0.0, {}, read_bytes=600_000_000)
    prefill = PrefillCase(1024, 4, 1.0, 1024.0, operations=2e9)
    cases = (decode.against(limits),), (prefill.against(limits),)
    return StepReport("tiny", {}, limits, *cases, skipped=())


def test_the_suites_comparisons_run_on_any_two_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        plan = SuitePlan(concurrencies=(1, 2), repeats=2, num_batching_requests=33)
        timer, steps = LoopTimer(MonotonicClock()), list[str]()
        async with FakeOpenAIServer(metrics=METRICS) as one, FakeOpenAIServer() as two:
            urls = {"combined": one.base_url, "1P+1D": two.base_url}
            comparison, waste = await compare_layouts(urls, plan, timer, steps.append)
            batching = await compare_strategies(one.base_url, plan, timer, steps.append)
        assert steps[:2] == [
            "combined, concurrency=1, run 1 of 2",
            "1P+1D, concurrency=1, run 1 of 2",
        ]
        assert [server.name for server in comparison.servers] == ["combined", "1P+1D"]
        assert len(comparison.ratios) == 2 and len(comparison.runs["combined"]) == 4
        assert waste["combined"].max_slots_per_sequence == 12.0
        assert (batching.name, batching.num_requests) == ("combined", 33)
        report = SuiteReport(step_report(), comparison, waste, batching, HandoffReport(1024, ()))
        show_suite(report)
        write_json(tmp_path / "suite.json", report)
        assert read_json(tmp_path / "suite.json", SuiteReport) == report

    asyncio.run(run())
    tables = capsys.readouterr().out
    titles = ("Decode steps, tiny", "Prefill, tiny", "combined")
    places = [tables.index(title) for title in titles]
    assert places == sorted(places), "shares of the machine's limits come first"
    assert tables.count("50%") == 2, "MBU and MFU"
