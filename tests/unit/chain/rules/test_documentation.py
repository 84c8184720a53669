"""docs/rules.md tells every append rule by its name, as the code has it."""

from __future__ import annotations

from pathlib import Path

from chain.rules import RULES, Rule

DOCUMENT = Path(__file__).parents[4] / "docs" / "rules.md"


def line(rule: Rule) -> str:
    said = " ".join((type(rule).__doc__ or "").split())
    concerns = ", ".join(event.__name__ for event in rule.concerns) or "every block"
    return f"| `{rule.name}` | {rule.binds.value} | {concerns} | {said} | {rule.clause} |"


def test_every_rule_is_documented_as_it_is() -> None:
    told = [text for text in DOCUMENT.read_text().splitlines() if text.startswith("| `")]
    assert told == [line(rule) for rule in RULES]
    assert all(type(rule).__doc__ != Rule.__doc__ for rule in RULES)
