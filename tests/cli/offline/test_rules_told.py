"""A folder that breaks an append rule: ``odfctl verify`` tells the rule by its name. ``test_rules.py`` has them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odfd.cli.main import main
from worlds.rule_cases import CASES, chain_until, folder_of


@pytest.mark.parametrize(
    ("rule", "told_as"),
    [
        ("first-block-seed", "first-block-seed"),
        ("prev-block-link", "block-missing"),
        ("watermark-monotonic", "watermark-monotonic"),
        ("offsets-sequential", "offsets-sequential"),
        ("schema-compatible", "schema-compatible"),
    ],
)
def test_a_broken_rule_is_told_by_its_name(
    rule: str, told_as: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[rule][0]
    code = main(
        ["verify", str(folder_of(tmp_path / "bad", chain_until(case, case.bad))), "--level", "chain", "-o", "json"]
    )
    told = json.loads(capsys.readouterr().out)
    assert (code, told["ok"]) == (1, False)
    last = max(each["block"]["sequenceNumber"] for each in told["failures"])
    assert told_as in {each["rule"] for each in told["failures"] if each["block"]["sequenceNumber"] == last}
    assert all(each["message"] for each in told["failures"])
    main(["verify", str(folder_of(tmp_path / "good", chain_until(case, case.good))), "--level", "chain", "-o", "json"])
    assert rule not in {each["rule"] for each in json.loads(capsys.readouterr().out)["failures"]}
