"""What the guard did, as metrics of the router. No label comes from a client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from core import metric_names as names
from router.guard.policy import Rule, Stage

MAX_RULE_LABELS = 200
"""Rules of all policies that were ever in use by this router; others are counted together."""
OTHER = "other"
SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1)


class GuardMetrics:
    """Registers itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rules: set[str] = set()
        self._findings = Counter(
            names.GUARD_FINDINGS_TOTAL,
            "Texts in which a rule found something",
            ("stage", "action", "rule"),
            registry=registry,
        )
        self._seconds = Histogram(
            names.GUARD_PROMPT_SECONDS,
            "Time to check a prompt, without an outside service",
            buckets=SECONDS,
            registry=registry,
        )
        self._service = Counter(
            names.GUARD_SERVICE_TOTAL,
            "Questions to the outside guard service, by its answer or why there was none",
            ("outcome",),
            registry=registry,
        )

    def found(self, stage: Stage, rule: Rule) -> None:
        if len(self._rules) < MAX_RULE_LABELS:
            self._rules.add(rule.name)
        label = rule.name if rule.name in self._rules else OTHER
        self._findings.labels(stage, rule.action, label).inc()

    def checked(self, seconds: float) -> None:
        self._seconds.observe(seconds)

    def service(self, outcome: str) -> None:
        self._service.labels(outcome).inc()
