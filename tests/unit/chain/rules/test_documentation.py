"""docs/rules.md tells every append rule by its name, as the code has it. Run as a program, this writes the table."""

from __future__ import annotations

from pathlib import Path

from chain.rules import RULES, Rule

DOCUMENT = Path(__file__).parents[4] / "docs" / "rules.md"


FROM_HERE = "|---|---|---|---|---|\n"


def line(rule: Rule) -> str:
    said = " ".join((type(rule).__doc__ or "").split())
    concerns = ", ".join(event.__name__ for event in rule.concerns) or "every block"
    return f"| `{rule.name}` | {rule.binds.value} | {concerns} | {said} | {rule.clause} |"


def table() -> str:
    return "".join(f"{line(rule)}\n" for rule in RULES)


def test_every_rule_is_documented_as_it_is() -> None:
    assert DOCUMENT.read_text().partition(FROM_HERE)[2] == table()
    assert all(type(rule).__doc__ != Rule.__doc__ for rule in RULES)


if __name__ == "__main__":
    head, mark, _ = DOCUMENT.read_text().partition(FROM_HERE)
    DOCUMENT.write_text(head + mark + table())
