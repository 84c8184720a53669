"""What is concluded from recorded plans; the plans and the expectations are in tests/golden/plans."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import yaml

from chain.errors import Invalid
from engines.contract import Vocab
from engines.spark.analysis.classify import classify
from engines.spark.analysis.influence import SessionWindow, VersionedInput
from engines.spark.analysis.monotone import DAY, SECOND, AddMonths, Floor, FloorMonths, Shift
from engines.spark.analysis.relation import InputReadings
from engines.spark.analysis.tree import MAX_DEPTH, build, parse_plan

PLANS = Path(__file__).parents[3] / "golden" / "plans"
CASES = yaml.load((PLANS / "queries.yaml").read_text(), yaml.CSafeLoader)
TIMES = {"a": "event_time", "b": "event_time"}
UNITS = (("d", DAY), ("h", 3600 * SECOND), ("min", 60 * SECOND), ("ms", 1000), ("us", 1))


def span(micros):
    return next(f"{micros // size}{name}" for name, size in UNITS if micros % size == 0)


def written(function):
    words = []
    for step in function:
        match step:
            case Floor(size, origin):
                words.append(f"floor({span(size)}{f' from {span(origin)}' if origin else ''})")
            case FloorMonths(months):
                words.append(f"month({months})")
            case Shift(by):
                words.append(f"shift({span(by)})")
            case AddMonths(months):
                words.append(f"months({months:+d})")
    return " ".join(words)


def influence(path):
    """``input: low .. high`` without the cut to milliseconds that every path ends with."""
    low, high = (written(function).removesuffix("floor(1ms)").strip() or "t" for function in (path.low, path.high))
    words = f"{path.input}: {low}" if low == high else f"{path.input}: {low} .. {high}"
    match path.life:
        case SessionWindow(gap, (member,)):
            return f"{words} of sessions({span(gap)}: {','.join(member.keys)})"
        case SessionWindow(gap, members):
            of = "; ".join(f"{each.input}{span(each.shift)} {','.join(each.keys)}" for each in members)
            return f"{words} of sessions({span(gap)}: {of})"
        case VersionedInput(keys, clamped):
            return f"{words} of versions({','.join(keys)}{'' if clamped else ', by time'})"
    return words


def readings(case):
    """Of inputs of which the case says nothing, nothing is known."""
    changes = {alias: word == "changes" for word in ("changes", "grows") for alias in case.get(word, ())}
    operations, offsets = dict.fromkeys(TIMES, "op"), dict.fromkeys(TIMES, "offset")
    return InputReadings(operations, frozenset(case.get("logs", ())), changes, offsets)


@pytest.mark.parametrize("name", CASES)
def test_verdict(name):
    case = CASES[name]
    verdict = classify(
        gzip.decompress((PLANS / f"{name}.json.gz").read_bytes()), TIMES, Vocab(),
        {alias: tuple(keys) for alias, keys in case.get("temporal", {}).items()}, readings(case),
    )  # fmt: skip
    assert {finding.code for finding in verdict.findings} == set(case.get("codes", ()))
    if "codes" in case:
        assert verdict.classification is None
        assert all(finding.message and finding.replace for finding in verdict.findings)
        return
    found = verdict.classification
    assert found.mode.value == case["mode"]
    assert found.operation == case.get("operation")
    assert found.exact == case.get("exact", False)
    assert found.running == case.get("running", 0)
    if "keys" in case:
        table = found.table
        assert table.bare == case.get("bare", False)
        assert [list(table.keys), table.single, table.merge] == [case["keys"], case["single"], case["merge"]]
        assert {alias: list(names) for alias, names in table.grouping.items()} == case["grouping"]
    if "influence" in case:
        assert [influence(path) for path in found.paths] == case["influence"]
        return
    lows = set(case["lows"]) if "lows" in case else {case["low"]} if "low" in case else set()
    assert {written(path.low) for path in found.paths} == lows
    assert {written(path.high) for path in found.paths} == ({case["high"]} if "high" in case else lows)
    assert len(found.paths) == case.get("paths", 1 if "low" in case else 0)


@pytest.mark.parametrize("text", ["", "{}", "[]", "[1]", '[{"class":"x"}]', '[{"class":"x","num-children":2}]', "[[]]"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(Invalid):
        parse_plan(text)


def test_depth_is_bounded():
    node = {"class": "x.Project", "num-children": 1}
    leaf = {"class": "x.Leaf", "num-children": 0}
    assert build([node] * (MAX_DEPTH - 1) + [leaf])
    with pytest.raises(Invalid, match="deeper"):
        build([node] * MAX_DEPTH + [leaf])
    verdict = classify(json.dumps([node] * MAX_DEPTH + [leaf]), TIMES, Vocab())
    assert [finding.code for finding in verdict.findings] == ["plan-too-large"]


def test_an_operator_that_nobody_knows_is_refused():
    plan = [{"class": "org.apache.spark.sql.Teleport", "num-children": 0}]
    verdict = classify(json.dumps(plan), TIMES, Vocab())
    assert "unknown-operator" in {finding.code for finding in verdict.findings}
