"""Puts a guard together from the settings."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from core.clock import Clock
from core.config import Config, GuardConfig
from router.guard.guard import Guard, GuardSettings
from router.guard.metrics import GuardMetrics
from router.guard.policies_in_use import PoliciesInUse
from router.guard.policy import Stage
from router.guard.service import GuardService, ServiceSettings
from text.card import ModelCard
from text.tokenizer import Tokenizer


def build_guard(
    config: Config,
    tokenizer: Tokenizer,
    card: ModelCard,
    registry: CollectorRegistry,
    clock: Clock,
) -> Guard | None:
    """None where it is not enabled. Raises ConfigError for a policy file that is wrong."""
    guard = config.guard
    if not guard.enabled:
        return None
    metrics = GuardMetrics(registry)
    max_model_len = config.model.max_model_len or card.max_model_len
    settings = GuardSettings(
        service_stages=_stages(guard),
        service_window=guard.service_window,
        max_characters=max_model_len * tokenizer.max_token_characters,
    )
    policies = PoliciesInUse(None if guard.policy_file is None else Path(guard.policy_file))
    return Guard(policies, _service(guard, metrics, clock), metrics, tokenizer, settings)


def _service(config: GuardConfig, metrics: GuardMetrics, clock: Clock) -> GuardService | None:
    if config.service_url is None:
        return None
    settings = ServiceSettings(
        url=config.service_url,
        timeout_s=config.service_timeout_s,
        fail_open=config.service_fail_open,
        max_concurrent=config.service_max_concurrent,
        breaker_failures=config.service_breaker_failures,
        breaker_rest_s=config.service_breaker_rest_s,
    )
    return GuardService(settings, metrics, clock)


def _stages(config: GuardConfig) -> frozenset[Stage]:
    if config.service_stages == "both":
        return frozenset(Stage)
    return frozenset({Stage(config.service_stages)})
