"""Rows of RFC-018 and properties of resources: the table names the tests of each, or says why there is none."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "spec" / "resources.md"
KEYS = [*(f"R{number}" for number in range(1, 66)), *(f"P{number}" for number in range(1, 13))]
ROW = re.compile(r"^\| ([RP]\d+) \| [^|]+ \| (.+) \|$", re.MULTILINE)
COUNTS = re.compile(r"^Tested are (\d+) of 65 rows, and (\d+) of 12 properties\.$", re.MULTILINE)
WHY_NOT = re.compile(r"(not yet|does not apply): \S.{10,}")


def there() -> dict[str, list[str]]:
    """Names of tests, by the rows that they stand for: ``test_r03_…`` or ``test_r53_p08_…``."""
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in re.findall(r"def (test_\w+)", path.read_text()) if path != Path(__file__) else ():
            for letter, number in re.findall(r"_([rp])(\d\d)(?=_)", name):
                found[f"{letter.upper()}{int(number)}"].append(name)
    return found


def test_each_row_names_its_tests_or_says_why_there_is_none() -> None:
    text, tests = TABLE.read_text(), there()
    rows = ROW.findall(text)
    assert [key for key, _ in rows] == KEYS
    assert tests.keys() <= set(KEYS)
    for key, said in rows:
        if key in tests:
            assert re.findall(r"`(test_\w+)`", said) == list(dict.fromkeys(tests[key])), key
        else:
            assert WHY_NOT.fullmatch(said), key
    (counted,) = COUNTS.findall(text)
    assert [int(each) for each in counted] == [sum(key[0] == letter for key in tests) for letter in "RP"]
