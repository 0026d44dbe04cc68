"""Rules and dashboards in deploy/ ask for what a router shows, and Debian's Prometheus agrees."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakes_process
import pytest
import yaml
from fakes_house import MODEL, House, Texts, house
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import Prometheus, locate, running

from core import metric_names as names
from core.histogram import Histogram
from core.load import LoadReport, StepTotals

DEPLOY = fakes_process.ROOT / "deploy"
LOAD = LoadReport(
    num_preemptions=1,
    kv_blocks={"free": 7, "cached": 1, "running": 2},
    kv_transfer_bytes=4096,
    kv_transfer_s=Histogram((0.1, 1.0), (2, 1, 1), 5.5),
    kv_transfer_failures={"timeout": 3},
    cancel_to_free_s=Histogram((0.5,), (4, 0), 0.25),
    steps=StepTotals(1.0, 1e9, 1e9, 1e12, 1e10, 0.5, 0.5),
)
WORDS = {
    "and",
    "or",
    "unless",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "le",
}
PROMETHEUS_OWN = {"up"}
UNHEARD_OF = {
    "tandem_cancels_total",
    "tandem_kv_handoff_failures_total",
    "tandem_limited_total",
    "tandem_sequences_moved_total",
    "tandem_tenant_tokens_total",
}
"""Counters with labels that have no samples as long as nothing of the kind has happened."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> Iterator[str]:
    dashboard = json.loads((DEPLOY / "grafana/tandem.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "1m").replace("$model", ".*")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield re.fullmatch(r"label_values\((\w+), \w+\)", variable["definition"])[1]  # type: ignore[index]


def names_in(expression: str) -> set[str]:
    """Metrics that a PromQL expression asks for."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expression)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    found = re.findall(r"[A-Za-z_:][\w:]*(?!\w|:|\s*\()", bare)
    return set(found) - WORDS


def shown_names(page: str) -> set[str]:
    """What a metrics page may have samples of, also where it has none yet."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {
        family.name + suffix
        for family in text_string_to_metric_families(page)
        for suffix in suffixes[family.type]
    }


async def loaded(h: House) -> None:
    """Requests of all ends, and workers with something to report."""
    body = {"model": MODEL, "prompt": list(range(100, 140)), "max_tokens": 6}
    for seed in range(4):
        response = await h.http.post("/v1/completions", json=body | {"seed": seed})
        assert response.status_code == 200
    await h.http.post("/v1/completions", json=body | {"max_tokens": 10**8})
    for worker in (h.p, h.d):
        worker.report(LOAD)
    await h.until(lambda: all(load == LOAD for _, load in h.router.fleet.loads()))


def test_names_are_found_in_queries() -> None:
    query = (
        'sum by (le) (rate(a_b:c{x="y_z"}[5m])) / d_total > on (w) e unless absent(f{g="h"}) - 1'
    )
    assert names_in(query) == {"a_b:c", "d_total", "e", "f"}


def test_rules_and_dashboards_ask_for_what_is_there(texts: Texts, tmp_path: Path) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    keys: dict[str, object] = {"require_keys": True, "file": str(tmp_path / "tenants.db")}

    async def run() -> str:
        async with house(texts, overrides={"tenants": keys}) as h:
            return (await h.http.get("/metrics")).text

    shown = shown_names(asyncio.run(run()))
    asked = {name for rule in rules() for name in names_in(rule["expr"])}
    assert asked - shown - recorded - PROMETHEUS_OWN == set()
    for query in dashboard_queries():
        assert names_in(query) <= shown and names_in(query), query
    known = set().union(*map(names_in, dashboard_queries()), asked)
    families = {name.removesuffix("_bucket") for name in shown if name.endswith("_bucket")}
    looked_at = {re.sub("_(bucket|sum|count)$", "", name) for name in known}
    unseen = {name for name in families - looked_at if name.startswith("tandem_")}
    assert not unseen, "histograms that nobody looks at"


def test_every_metric_is_explained() -> None:
    page = (fakes_process.ROOT / "docs/OBSERVABILITY.md").read_text()
    ours = {v for v in vars(names).values() if isinstance(v, str) and re.match(r"tandem_\w", v)}
    assert len(ours) > 40
    assert [name for name in sorted(ours) if f"`{name}`" not in page] == []


def test_every_alert_says_what_is_the_matter() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) >= 8
    for alert in alerts:
        assert alert["annotations"]["summary"] and alert["labels"]["severity"] in (
            "warning",
            "critical",
        )


@pytest.fixture(scope="module")
def program() -> Path:
    return locate()


def test_prometheus_answers_every_query_of_rules_and_dashboards(
    texts: Texts, program: Path, tmp_path: Path
) -> None:
    async def run() -> None:
        async with house(texts) as h:
            await loaded(h)
            config = tmp_path / "prometheus.yaml"
            config.write_text(scraping(h.ports.http))
            async with running(program, tmp_path, config) as prometheus:
                await prometheus.until_scraped()
                await check(prometheus)

    asyncio.run(run())


def scraping(port: int) -> str:
    """Our own configuration, but for where the router is, how often it is read, and of what."""
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "4s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus/rules.yaml")]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    return str(yaml.safe_dump(config))


async def check(prometheus: Prometheus) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        await prometheus.query(rule["expr"])
        for name in names_in(rule["expr"]) - recorded:
            assert await prometheus.query(name) or "failures" in name, name
    for query in dashboard_queries():
        await prometheus.query(query)
        for name in names_in(query) - UNHEARD_OF:
            assert await prometheus.query(name), name
    for name in ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert await prometheus.query(name), name
    (ttft,) = await prometheus.query("sum(tandem_ttft_seconds_count)")
    assert float(ttft["value"][1]) == 4
    phases = "|".join(
        f"tandem_ttft_{name}_seconds_sum" for name in ("queue", "tokenize", "prefill")
    )
    (ratio,) = await prometheus.query(
        f'sum({{__name__=~"{phases}"}}) / sum(tandem_ttft_seconds_sum)'
    )
    assert abs(float(ratio["value"][1]) - 1) <= 0.05
    loaded_rules = (await prometheus.get("/api/v1/rules"))["groups"]
    assert sum(len(group["rules"]) for group in loaded_rules) == len(rules())
    for group in loaded_rules:
        assert not [rule for rule in group["rules"] if rule.get("lastError")]
