"""A gate: for each important line of the product, a test of every run that fails when the line is wrong.

``mutants.toml`` says for each line by what it is replaced, and which test sees it. A row whose mutant lives says that
nothing holds the line any more: a test is missing, or one was taken away that was no duplicate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

TREE: Final = Path(__file__).parents[3]
HOOK: Final = Path(__file__).with_name("hook")
PASSED, FAILED = 0, 1
NO_SIGHT: Final = {"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError", "nothing"}
"""What a replacement raises that is no program: it would fail any test."""


class Mutant(NamedTuple):
    subject: str
    file: str
    text: str
    instead: str
    test: str


class Outcome(NamedTuple):
    code: int
    ran: bool
    failed: dict[str, str]
    """Tests that failed, and what each raised."""
    output: str


def rows() -> list[Mutant]:
    given = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))
    return [Mutant(subject, *row) for subject, found in given.items() for row in found]


MUTANTS: Final = rows()


def run(tests: Sequence[str], folder: Path, mutant: tuple[str, str] | None = None) -> Outcome:
    report = folder / "report.json"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "ODF_FAULT_"))}
    environment |= {
        "PYTHONPATH": str(HOOK),
        "ODF_MUTANT": json.dumps(mutant) if mutant else "",
        "ODF_MUTANT_REPORT": str(report),
    }
    options = ("-q", "-x", "-n0", "-p", "mutant", "-m", "not nightly", "--tb=short")
    command = (sys.executable, "-m", "pytest", *options, f"--basetemp={folder / 'kept'}", *tests)
    done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout[-4000:] + done.stderr[-1000:]
    assert report.exists(), f"the run of {', '.join(tests)} did not come to its end:\n{output}"
    told = json.loads(report.read_text())
    return Outcome(done.returncode, told["ran"], told["failed"], output)


@pytest.mark.parametrize("file", sorted({each.test.partition("::")[0] for each in MUTANTS}))
def test_the_tests_pass_as_the_tree_is(file: str, tmp_path: Path) -> None:
    found = run(sorted({each.test for each in MUTANTS if each.test.partition("::")[0] == file}), tmp_path)
    assert found.code == PASSED, found.output
    assert " skipped" not in found.output, "a skipped test sees nothing"


@pytest.mark.parametrize("mutant", [pytest.param(each, id=f"{each.subject}: {each.text[:60]}") for each in MUTANTS])
def test_a_wrong_line_is_seen(mutant: Mutant, tmp_path: Path) -> None:
    path = (TREE / mutant.file).resolve()
    source = path.read_text(encoding="utf-8")
    times = source.count(mutant.text)
    assert times == 1, (
        f"{mutant.file} has this {times} times; the row must name a text that is there once: {mutant.text}"
    )
    assert mutant.instead != mutant.text
    found = run([mutant.test], tmp_path, (str(path), source.replace(mutant.text, mutant.instead)))
    assert found.ran, f"{mutant.test} does not import {mutant.file}"
    assert found.code != PASSED, f"{mutant.test} passes with {mutant.instead!r} for {mutant.text!r} in {mutant.file}"
    assert found.code == FAILED, f"no test ran:\n{found.output}"
    seen = {test: kind for test, kind in found.failed.items() if kind not in NO_SIGHT}
    assert seen, f"no test failed by what it asserts:\n{found.output}"
