"""Explains rules: what each rule of a fault, a finding or a refusal says, and what to do where it is broken.

The tables beside this module have a line a rule, one table a package that raises them. Packages below ``odfd`` raise
rules too and know nobody: the tables are read only where a rule is explained.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

COLUMNS: Final = ("rule", "meaning", "what to do")
_HERE: Final = Path(__file__).parent


class ExplainedRule(NamedTuple):
    """One rule, explained."""

    name: str
    meaning: str
    """What the rule says, or what happened where it is a failure."""
    remedy: str
    """What to do where it is broken."""
    subject: str
    """The name of its table: the package that raises it."""


@cache
def rules() -> dict[str, ExplainedRule]:
    """Returns all rules by name. Reads files."""
    return {rule.name: rule for path in sorted(_HERE.glob("*.tsv")) for rule in read_table(path)}


def read_table(path: Path) -> list[ExplainedRule]:
    """Reads the rules of one package. Raises ValueError for a line that is not a name and two texts."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    if tuple(head.split("\t")) != COLUMNS:
        raise ValueError(f"{path.name} has other columns than {COLUMNS}")
    return [_rule(line, path.stem) for line in lines]


def _rule(line: str, subject: str) -> ExplainedRule:
    name, meaning, remedy = line.split("\t")
    if not (name and meaning and remedy):
        raise ValueError(f"{subject}: a rule without a text: {line[:80]}")
    return ExplainedRule(name, meaning, remedy, subject)
