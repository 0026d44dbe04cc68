"""Policies in files: what may be written, whose they are, and when they change."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from core.errors import ConfigError
from router.guard.compiled_policy import compiled
from router.guard.policies_in_use import PoliciesInUse
from router.guard.policy import Action, Stage
from router.guard.policy_file import builtin_book, read_policies

POLICIES = """
default = "standard"
[tenants]
acme = "strict"
lab = "none"

[policies.none]
builtin = "off"

[policies.standard]
builtin = "flag"
[[policies.standard.rules]]
name = "names"
action = "redact"
terms = ["Project Falcon", "机密文件"]
replacement = "***"

[policies.strict]
[[policies.strict.rules]]
name = "ids"
action = "block"
patterns = ['\\bAB-\\d{4}\\b']
stages = ["input"]
roles = ["user"]
"""


def written(path: Path, text: str = POLICIES) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_tenants_have_the_policies_that_the_file_gives_them(tmp_path: Path) -> None:
    book = read_policies(written(tmp_path / "policies.toml"))
    assert book.name_for("acme") == "strict" and book.name_for("") == "standard"
    standard = book.policies["standard"]
    assert standard.rules[0].terms == ("Project Falcon", "机密文件")
    assert {rule.action for rule in standard.rules[1:]} == {Action.FLAG}
    assert not book.policies["none"].rules
    strict = compiled(book).policy_of("acme")
    assert not strict.answers, "there is nothing to look for in answers"
    assert compiled(book).policy_of("other").answers
    assert book.policies["strict"].rules_of(Stage.OUTPUT) == ()


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    policy = {"builtin": "off", "rules": [{"name": "a", "action": "flag", "terms": ["x"]}]}
    text = json.dumps({"default": "p", "policies": {"p": policy}})
    toml = 'default = "p"\n[policies.p]\nbuiltin = "off"\n'
    toml += '[[policies.p.rules]]\nname = "a"\naction = "flag"\nterms = ["x"]\n'
    from_json = read_policies(written(tmp_path / "policies.json", text))
    assert from_json == read_policies(written(tmp_path / "policies.toml", toml))


def test_without_a_file_injection_is_blocked_for_everybody() -> None:
    book = builtin_book()
    assert {rule.action for rule in book.policies[book.name_for("anyone")].rules} == {Action.BLOCK}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('default = "standard"', 'default = "other"', "no policy 'other'"),
        ('acme = "strict"', 'acme = "stricter"', "no policy 'stricter'"),
        ('action = "redact"', 'action = "burn"', "policies.standard.rules.0.action"),
        ('terms = ["Project Falcon", "机密文件"]', "", "needs terms or patterns"),
        ('"机密文件"', '"\\u200b"', "nothing that is compared"),
        ("AB-", "AB-(", "no regular expression"),
        ('stages = ["input"]', 'stages = ["output"]', "for prompts only"),
        ('name = "names"', 'name = "injection.chinese"', "two rules of one name"),
        ('builtin = "off"', 'bultin = "off"', "policies.none.bultin"),
        ("[policies.none]", "[policies.none", "line"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in POLICIES
    file = written(tmp_path / "policies.toml", POLICIES.replace(old, new, 1))
    with pytest.raises(ConfigError, match=r"guard\.policy_file") as caught:
        read_policies(file)
    assert said in caught.value.message


def test_a_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        PoliciesInUse(tmp_path / "none.toml")


def test_a_changed_file_takes_effect_and_a_wrong_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path / "policies.toml")

    async def test() -> None:
        policies = PoliciesInUse(file)
        first = await policies.current()
        assert await policies.current() is first
        written(file, POLICIES.replace('lab = "none"', 'lab = "strict"'))
        second = await policies.current()
        assert second.policy_of("lab").name == "strict"
        written(file, "default = 1")
        with caplog.at_level(logging.WARNING):
            assert await policies.current() is second
            assert await policies.current() is second
        assert len(caplog.records) == 1, "said once"
        file.unlink()
        assert await policies.current() is second
        written(file)
        both = await asyncio.gather(policies.current(), policies.current())
        assert both[0] is both[1] and both[0].policy_of("lab").name == "none"

    asyncio.run(test())


def test_the_example_of_the_page_is_a_policy_file(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "GUARD.md").read_text(encoding="utf-8")
    example = page.partition("```toml\n")[2].partition("```")[0]
    book = compiled(read_policies(written(tmp_path / "example.toml", example)))
    assert not book.policy_of("redteam").answers and book.policy_of("acme").answers
