"""Parts of a machine: the table is whole, each skip of the tests has a row, and a required part fails what skips."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from worlds.parts import ALL, NIGHTLY, TREE, load_parts, read_parts
from worlds.required_parts import judge

SMALL = r"""
[there]
programs = ["sh"]
reason = "no shell"
carries = "scripts"

[lost]
programs = ["no-such-program"]
apt = ["lost"]
reason = "no-such-program"
carries = "nothing"

[large]
files = ["no/such/file"]
make = "large"
reason = "large"
carries = "images"
nightly = true

[allowed]
soak = "ODF_SOAK"
"""


def test_missing_parts_are_told_with_what_they_carry() -> None:
    parts = read_parts(SMALL)
    assert [part.name for part in parts.missing([ALL])] == ["lost"]
    assert [part.name for part in parts.missing([NIGHTLY])] == ["lost", "large"]
    assert parts.missing(["there"]) == []
    assert parts.parts[1].source == "Debian: lost"
    with pytest.raises(ValueError, match="no part is called shell"):
        parts.missing(["shell"])


@pytest.mark.parametrize(
    ("reason", "names", "why"),
    [
        ("no-such-program is not installed", [ALL], "lost is required"),
        ("no-such-program is not installed", ["there"], None),
        ("no large image", [ALL], None),
        ("no large image", [NIGHTLY], "large is required"),
        ("an hour; ODF_SOAK=1 runs it", [NIGHTLY], None),
        ("somebody was tired", ["there"], "no row of tests/parts.toml has this reason"),
    ],
)
def test_a_skip_fails_where_its_part_is_required(reason: str, names: list[str], why: str | None) -> None:
    parts = read_parts(SMALL)
    assert parts.blame(reason, names) == why
    report = pytest.TestReport("a::b", ("a", 1, "b"), {}, "skipped", ("a", 1, f"Skipped: {reason}"), "call")
    judge(report, parts, names)
    assert (report.outcome, "skipped though" in str(report.longrepr)) == (
        ("skipped", False) if why is None else ("failed", True)
    )


def test_nothing_is_required_unless_somebody_says_so() -> None:
    report = pytest.TestReport("a::b", ("a", 1, "b"), {}, "skipped", ("a", 1, "Skipped: no-such-program"), "call")
    judge(report, read_parts(SMALL), [])
    assert report.skipped


def test_every_skip_that_names_its_reason_has_a_row() -> None:
    parts, unknown = load_parts(), []
    for path in sorted(Path(TREE, "tests").rglob("*.py")):
        for reason in re.findall(r"(?:pytest\.skip\(f?|skipif\(.*reason=)\"([^\"]+)\"", path.read_text()):
            spoken = re.sub(r"\{[^}]*\}", "fish", reason)
            if "not installed" not in spoken and parts.blame(spoken, [NIGHTLY]) == parts.blame("?", [NIGHTLY]):
                unknown.append(f"{path.relative_to(TREE)}: {reason}")
    assert not unknown


def test_each_target_of_the_table_is_in_the_makefile() -> None:
    makefile = (TREE / "Makefile").read_text()
    assert [part.make for part in load_parts().parts if part.make and f"\n{part.make}:" not in makefile] == []
