"""What the doctor says on a terminal: nothing that is to be done is cut off."""

from __future__ import annotations

from odfd.cli.commands.node import doctor_text
from odfd.control import wire


def test_what_is_to_be_done_is_told_whole() -> None:
    hint = "; ".join(f"odfctl step {number}" for number in range(40))
    found = ", ".join(f"dataset-{number}" for number in range(30))
    told = doctor_text(
        [
            wire.Probe(name="disk", result="ok", message="much"),
            wire.Probe(name="clock", result="failed", message=found, hint=hint),
        ]
    )
    assert told.splitlines() == [
        "PROBE  RESULT  FOUND",
        "disk   ok      much",
        f"clock  FAILED  {found}",
        "",
        "to do:",
        f"  clock  {hint}",
    ]


def test_where_all_is_well_nothing_is_to_be_done() -> None:
    assert "to do" not in doctor_text([wire.Probe(name="disk", result="ok", message="much")])
