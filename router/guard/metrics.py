"""What the guard did, as metrics of the router. No label comes from a client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from core import metric_names as names
from router.guard.policy import Rule, Stage
from router.guard.resampling.token_check import CheckOutcome
from router.life.check_timeline import CheckTimeline

MAX_RULE_LABELS = 200
"""Rules of all policies that were ever in use by this router; others are counted together."""
MAX_POLICY_LABELS = 100
OTHER = "other"
SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1)
CHECK_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class GuardMetrics:
    """Registers itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rules = _Labels(MAX_RULE_LABELS)
        self._policies = _Labels(MAX_POLICY_LABELS)
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
        self._token_checks = Counter(
            names.GUARD_TOKEN_CHECKS_TOTAL,
            "Suspicious tokens of answers, by what came of comparing them",
            ("policy", "outcome"),
            registry=registry,
        )
        self._resamples = Counter(
            names.GUARD_RESAMPLES_TOTAL,
            "Tokens drawn under a policy's prompt because the answer's own was too far from it",
            ("policy",),
            registry=registry,
        )
        self._check_seconds = Histogram(
            names.GUARD_TOKEN_CHECK_SECONDS,
            "How long a suspicious token was withheld to be compared",
            buckets=CHECK_SECONDS,
            registry=registry,
        )

    def found(self, stage: Stage, rule: Rule) -> None:
        self._findings.labels(stage, rule.action, self._rules.label(rule.name)).inc()

    def checked(self, seconds: float) -> None:
        self._seconds.observe(seconds)

    def service(self, outcome: str) -> None:
        self._service.labels(outcome).inc()

    def token_checked(self, policy: str, check: CheckTimeline) -> None:
        label = self._policies.label(policy)
        self._token_checks.labels(label, check.outcome).inc()
        self._resamples.labels(label).inc(check.num_resamples)
        if check.outcome != CheckOutcome.EXHAUSTED:
            self._check_seconds.observe(check.ended - check.began)


class _Labels:
    """Names that may be labels: the first ones that came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        if len(self._known) < self._most:
            self._known.add(name)
        return name if name in self._known else OTHER
