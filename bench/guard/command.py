"""`tandem bench guard`: what the guard costs, what it catches, and what it gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.options import JsonOption
from bench.report import write_json
from core.errors import ConfigError

if TYPE_CHECKING:
    from bench.guard.guard_bench import GuardReport
    from router.guard.policy import Policy

SHOWN_CHARACTERS = 160


def guard(
    policy_file: Annotated[
        Path | None, typer.Option(help="Policies to measure; without it, the built-in one.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Which of them; usually the default.")] = None,
    repeats: Annotated[int, typer.Option(min=10, help="Checks of each size.")] = 500,
    json_file: JsonOption = None,
) -> None:
    """Measure the guard: time per prompt and per streamed token, attacks caught, false alarms.

    Attacks are made from phrasings of several families in several disguises; those that count were
    never used to write the built-in expressions. False alarms are looked for in the language
    reference that comes with Python and in questions that mention what attacks mention.
    """
    from bench.guard.guard_bench import measure

    report = measure(_chosen(policy_file, policy), repeats=repeats)
    console = Console()
    for table in (times_table(report), streaming_table(report), catches_table(report)):
        console.print(table)
    console.print(f"missed: {len(report.missed)}", *_shown(report.missed), sep="\n  ", markup=False)
    console.print(
        f"false alarms: {len(report.false_positives)} of {report.num_paragraphs} paragraphs, "
        f"{report.num_questions} questions, {report.num_unseen_questions} unseen questions",
        *_shown(report.false_positives),
        sep="\n  ",
        markup=False,
    )
    if json_file is not None:
        write_json(json_file, report)


def times_table(report: GuardReport) -> Table:
    """One row a kind of text."""
    table = Table(title=f"Checks by policy '{report.policy}', ms")
    table.add_column("text")
    for heading in ("characters", "p50", "p99", "CPU p50", "CPU p99"):
        table.add_column(heading, justify="right")
    for row in report.times:
        figures = (row.p50_ms, row.p99_ms, row.cpu_p50_ms, row.cpu_p99_ms)
        table.add_row(row.text, str(row.num_characters), *(f"{ms:.3f}" for ms in figures))
    return table


def streaming_table(report: GuardReport) -> Table:
    """One row a lexicon."""
    table = Table(title="Filter of answers")
    table.add_column("lexicon")
    for heading in ("terms", "us a token", "tokens that wait"):
        table.add_column(heading, justify="right")
    for row in report.streaming:
        figures = (f"{row.us_per_token:.1f}", f"{row.withheld_share:.1%}")
        table.add_row(row.lexicon, str(row.num_terms), *figures)
    return table


def catches_table(report: GuardReport) -> Table:
    """One row a family or a disguise."""
    table = Table(title="Attacks that were caught")
    table.add_column("held out")
    for heading in ("attacks", "caught", "share"):
        table.add_column(heading, justify="right")
    for rate in report.held_out:
        if rate.group in ("plain", "templates"):
            table.add_section()
        table.add_row(rate.group, str(rate.num_attacks), str(rate.num_caught), f"{rate.share:.1%}")
    known = report.known
    table.caption = f"of the known phrasings: {known.num_caught} of {known.num_attacks}"
    return table


def _chosen(policy_file: Path | None, name: str | None) -> Policy:
    from router.guard.policy_file import builtin_book, read_policies

    book = builtin_book() if policy_file is None else read_policies(policy_file)
    chosen = book.default if name is None else name
    if chosen not in book.policies:
        raise ConfigError(f"there is no policy '{chosen}'; known: {', '.join(book.policies)}")
    return book.policies[chosen]


def _shown(texts: list[str]) -> list[str]:
    return [" ".join(text.split())[:SHOWN_CHARACTERS] for text in texts]
