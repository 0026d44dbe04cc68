"""Policies ready for use: what is looked for in prompts, and in answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from router.guard.policy import Policy, PolicyBook, Stage
from router.guard.prompt_scanner import PromptScanner
from router.guard.term_stream import Lexicon


class CompiledPolicy:
    """Immutable, so that any thread may use it. Takes some 20 ms to make."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.prompts = PromptScanner(policy.rules_of(Stage.INPUT))
        self.answers = Lexicon(policy.rules_of(Stage.OUTPUT))
        self.resampling = policy.resampling
        self.watched = Lexicon(policy.watched_rules if policy.resampling is not None else ())
        """Terms that make tokens suspicious, where those are looked for."""


@dataclass(frozen=True, slots=True)
class CompiledBook:
    """The policy of every tenant."""

    book: PolicyBook
    policies: Mapping[str, CompiledPolicy]

    def policy_of(self, tenant: str) -> CompiledPolicy:
        return self.policies[self.book.name_for(tenant)]


def compiled(book: PolicyBook) -> CompiledBook:
    return CompiledBook(
        book, {name: CompiledPolicy(policy) for name, policy in book.policies.items()}
    )
