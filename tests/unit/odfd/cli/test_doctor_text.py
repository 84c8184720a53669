"""What the doctor and the status say on a terminal: nothing that is to be done is cut off."""

from __future__ import annotations

from odfd.cli.commands.node import doctor_text, status_text
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


def test_an_engine_that_is_not_there_is_told_with_the_reason() -> None:
    absent = wire.EngineView(name="spark", state="not-installed", message="without it: read how\x1b[2J")
    told = status_text(wire.Status(node_id="did:key:z6", version="1", engine=absent))
    (line,) = [line for line in told.splitlines() if line.startswith("engine")]
    assert line.split(maxsplit=1)[1].startswith("spark  not installed: without it: read how")
    assert "\x1b" not in line
    failed = wire.EngineView(name="spark", state="failed", message="no Java")
    assert "spark  failed: no Java" in status_text(wire.Status(node_id="did:key:z6", version="1", engine=failed))
