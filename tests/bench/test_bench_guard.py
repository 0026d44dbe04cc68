"""What the built-in policy catches of attacks that it was not written for, and its false alarms."""

from __future__ import annotations

import pytest

from bench.guard.attack_corpus import DISGUISES, attacks
from bench.guard.command import catches_table, streaming_table, times_table
from bench.guard.guard_bench import GuardReport, measure
from router.guard.policy_file import builtin_book


@pytest.fixture(scope="module")
def report() -> GuardReport:
    return measure(builtin_book().policies["builtin"], repeats=10)


def test_nine_of_ten_unseen_templates_are_caught_in_every_disguise(report: GuardReport) -> None:
    shares = {rate.group: rate.share for rate in report.held_out}
    sizes = {rate.group: rate.num_attacks for rate in report.held_out}
    assert shares["templates"] >= 0.9 and sizes["templates"] >= 300
    for family in ("override", "role_play", "extraction", "delimiters", "encoded", "chinese"):
        assert shares[family] >= 0.9, family
    assert report.known.share == 1.0
    assert len(report.missed) < 10


def test_hardly_any_ordinary_text_is_refused(report: GuardReport) -> None:
    assert report.num_paragraphs > 2_000
    assert len(report.false_positives) <= 2, report.false_positives


def test_a_disguise_hides_every_attack_it_is_for() -> None:
    made = list(attacks())
    assert {attack.disguise for attack in made} == set(DISGUISES)
    plain = {a.text for a in made if a.disguise == "plain"}
    assert all(a.text not in plain for a in made if a.disguise in ("full width", "zero width"))


def test_tables_show_every_row(report: GuardReport) -> None:
    assert times_table(report).row_count == len(report.times)
    assert catches_table(report).row_count == len(report.held_out)
    assert streaming_table(report).row_count == len(report.streaming)
