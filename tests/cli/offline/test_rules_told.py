"""Every append rule that binds everyone, as a folder that breaks it: ``odfctl verify`` tells the rule by its name."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain.model.block import Block
from chain.rules import RULES, Binds
from chain.store.layout import DirectoryChain, DirectoryObjects, DirectoryWriter
from odfd.cli.main import main
from odfd.verify.report import Level
from odfd.verify.verify import VerificationRequest, verify_chain

CASES = Path(__file__).parents[2] / "unit" / "chain" / "rules" / "test_rules.py"
spec = importlib.util.spec_from_file_location("cases_of_rules", CASES)
assert spec is not None
assert spec.loader is not None
cases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cases)

GAPS = {"prev-block-link": "block-missing", "sequence-number": "block-missing"}
"""In a folder, a block whose neighbour is not the one it names ends a walk, and what lies beyond is told as missing."""


def broken() -> Iterator[Any]:
    for rule in RULES:
        bad = [(number, case) for number, case in enumerate(cases.CASES[rule.name]) if case.bad is not None]
        if rule.binds is Binds.EVERYONE:
            yield from (pytest.param(rule.name, case, id=f"{rule.name}-{number}") for number, case in bad)


def folder_of(directory: Path, blocks: list[Block]) -> Path:
    (directory / "refs").mkdir(parents=True)
    (directory / "blocks").mkdir()
    writer = DirectoryWriter(directory)
    for block in blocks:
        writer.add_block(block.hash, block.raw)
    writer.set_head(blocks[-1].hash, None)
    return directory


def following(case: Any, event: Any) -> list[Block]:
    event, changes = event if isinstance(event, tuple) else (event, {})
    return [*cases.CHAINS[case.state.head], cases.following(case.state, event, **changes)]


@pytest.mark.parametrize(("rule", "case"), list(broken()))
def test_a_broken_rule_is_told_by_its_name(
    rule: str, case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "bad", following(case, case.bad))
    code = main(["verify", str(folder), "--level", "chain", "-o", "json"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["ok"]) == (1, False)
    names = {rule, GAPS.get(rule)}
    last = max(each["block"]["sequenceNumber"] for each in told["failures"])
    assert names & {each["rule"] for each in told["failures"] if each["block"]["sequenceNumber"] == last}
    for failure in told["failures"]:
        assert failure["message"]
    for columns in (True, False):
        request = VerificationRequest(ref="x", level=Level.CHAIN, columns=columns)
        report = verify_chain(DirectoryChain(folder), DirectoryObjects(folder), request)
        assert [each.rule for each in report.failures] == [each["rule"] for each in told["failures"]]
    if case.good is not None:
        good = folder_of(tmp_path / "good", following(case, case.good))
        main(["verify", str(good), "--level", "chain", "-o", "json"])
        assert rule not in {each["rule"] for each in json.loads(capsys.readouterr().out)["failures"]}
