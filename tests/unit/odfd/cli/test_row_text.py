"""What became of rows, in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from odfd.cli.commands.ingest_pull import outcome
from odfd.cli.dataset_text import rows_text
from odfd.cli.details import dataset
from odfd.control import wire

FIELDS = (
    "read", "shaped", "appended", "corrected", "retracted", "unchanged", "conflicting", "superseded", "late", "untimed",
    "quarantined",
)  # fmt: skip


def rows(*files: str, remarks: tuple[str, ...] = (), **counts: int | None) -> wire.RowCounts:
    skipped = tuple(wire.SkippedFile(name=name, reason="it is empty") for name in files)
    return wire.RowCounts(**{**dict.fromkeys(FIELDS, 0), **counts}, skipped=skipped, remarks=remarks)


@pytest.mark.parametrize(
    "given,said",
    [
        (None, ""),
        (rows(), ""),
        (rows(read=3, shaped=3, appended=3), ""),
        (
            rows(read=1005, shaped=1005, appended=1000, unchanged=3, conflicting=2),
            "1,005 read: 1,000 appended, 3 unchanged, 2 conflicting",
        ),
        (rows(read=5, shaped=2, appended=2), "5 read: 2 appended, 3 left out by preprocess"),
        (rows(read=5, shaped=4, appended=4, quarantined=1), "5 read: 4 appended, 1 quarantined"),
        (rows(read=2, shaped=2, untimed=2), "2 read: 2 without event time"),
        (rows(remarks=("one thing", "another")), "one thing; another"),
        (rows("a.csv"), "skipped a.csv (it is empty)"),
        (
            msgspec.structs.replace(
                rows(), skipped=tuple(wire.SkippedFile(name=f"{n}.csv", reason=f"it changed at {n}") for n in range(6))
            ),
            "skipped 0.csv (it changed at 0), 1.csv (it changed at 1), 2.csv (it changed at 2),"
            " 3.csv (it changed at 3) and 2 more",
        ),
        (
            rows("a", "b", "c", "d", read=1, shaped=1, appended=1, late=1),
            "1 read: 1 appended, 1 late; skipped a, b, c and 1 more (it is empty)",
        ),
        (rows(read=None, shaped=None, unchanged=None, corrected=2), "2 corrected"),
    ],
)
def test_what_is_not_zero_is_told(given: wire.RowCounts | None, said: str) -> None:
    assert rows_text(given) == said


def test_a_description_tells_the_sum_or_that_nobody_counted() -> None:
    view = wire.DatasetView(name="x", id="y", kind="root", blocks=3)
    counted = wire.RowTotals(
        since_block=2,
        transactions=2,
        rows=rows(read=4, shaped=4, appended=3, unchanged=1),
        last=rows(read=1, shaped=1, unchanged=1),
    )
    text = dataset(wire.DatasetDetail(dataset=view, rows=counted))
    assert "4 read: 3 appended, 1 unchanged, in 2 transactions since block #2" in text
    assert "1 read: 1 unchanged" in text
    assert "not counted here" in dataset(wire.DatasetDetail(dataset=view))


def test_rows_that_a_ledger_did_not_take_come_with_what_to_do() -> None:
    told: list[str] = []
    session: Any = SimpleNamespace(show=lambda *_: None, remark=told.append)
    one, none = {"ref": "a.b", "outcome": "updated", "rows": {"conflicting": 1}}, {"ref": "c", "rows": None}
    assert outcome(session, {"items": [one, none, {"ref": "d", "rows": {"conflicting": None}}]}) == 0
    assert told == [
        "a.b: 1 conflicting row not taken, as a ledger keeps the first values of a key\n"
        "  odfctl correct a.b changes them by hand"
    ]
