"""``trust recheck FILE``: checks a bundle of evidence and repeats its step, without daemon or network; or an answer.

All files are in a folder that is deleted afterwards; the engine is started for this check, in the strongest sandbox
that works on this machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from odfd.cli import formatting
from odfd.cli.offline import files
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.cli.trust_text import evidence_lines
from odfd.control import wire
from odfd.errors import ExitCode

if TYPE_CHECKING:
    from odfd.trust.evidence.bundle import Unpacked
    from odfd.trust.validation.recheck import RecheckAnswer

PATIENCE_SECONDS: Final = 600.0
"""Seconds that the re-run may take altogether."""
CODES: Final = {
    "confirmed": ExitCode.OK,
    "refuted": ExitCode.NO,
    "incomplete": ExitCode.INVALID,
    "unable": ExitCode.ENVIRONMENT,
}
_SAYING: Final = {
    "confirmed": "The published step is wrong; its publisher signed it.",
    "refuted": "The published step is right: the author of this bundle accuses wrongly.",
    "incomplete": "The file does not hold what the step reads, so nothing was decided.",
    "unable": "This machine cannot decide.",
}


def run(session: Session, args: argparse.Namespace) -> int:
    """Prints the result on standard output. Returns the exit code."""
    from chain.store.files import disk

    path = files.existing(args.file)
    with disk(path), path.open("rb") as file:
        if file.read(1) == b"{":
            return _document(session, args)
    return _bundle(session, args, path)


def _bundle(session: Session, args: argparse.Namespace, path: Path) -> int:
    """Repeats the step of a bundle. Returns the exit code."""
    import msgspec

    from chain.store.files import disk
    from odfd.trust.evidence.bundle import unpacked

    session.remark(f"checking {args.file} ({formatting.size(path.stat().st_size)}): signature, hashes, links, rules")
    with tempfile.TemporaryDirectory(prefix="odfd-recheck-") as folder:
        place = Path(folder)
        with disk(path), path.open("rb") as file, unpacked(file, args.file, place) as case:
            session.remark("running the step again on this machine's engine")
            answer = _answer(case, place)
    view = _view(msgspec.json.decode(msgspec.json.encode(answer, enc_hook=str)))
    session.show(view, _text)
    return CODES[view["result"]]


def _document(session: Session, args: argparse.Namespace) -> int:
    """Checks a JSON file: a proven answer, or a proof of two statements. Returns the exit code."""
    from odfd.cli.offline import answer_recheck

    proven = answer_recheck.read(args.file)
    if proven is None:
        session.show(_proof(args.file), _proof_text)
        return ExitCode.OK
    session.remark("asking the same of the same blocks")
    view = answer_recheck.run(session, proven, args.folders)
    session.show(view, answer_recheck.text)
    return {"confirmed": ExitCode.OK, "refuted": ExitCode.NO}.get(view["result"], ExitCode.ENVIRONMENT)


def _proof(name: str) -> dict[str, Any]:
    """Checks a proof, which needs no engine: two signatures, two paths. Raises Invalid."""
    from chain.errors import Invalid
    from chain.statements import proof as proofs

    try:
        found = proofs.decode(files.read_limited(name, proofs.MAX_PROOF, "proof"))
    except Invalid as fault:
        fault.place = fault.place or name
        raise
    return {
        "result": "confirmed",
        "kind": found.kind,
        "id": str(found.id),
        "dataset": str(found.dataset),
        "epoch": found.epoch,
        "sequenceNumber": found.index,
        "accused": [str(key) for key in found.accused],
    }


def _proof_text(view: dict[str, Any]) -> str:
    who = ", ".join(formatting.identity(key) for key in view["accused"])
    where = formatting.identity(view["dataset"])
    if view["sequenceNumber"] is None:
        return f"confirmed   {view['kind']} on {where}\n  {who} signed two statements that contradict each other."
    return f"confirmed   {view['kind']} of {where} at #{view['sequenceNumber']}\n  {who} signed two histories."


def _answer(case: Unpacked, place: Path) -> RecheckAnswer:
    """Repeats the step. Raises the faults of an engine that cannot be started or is lost."""
    import trio

    from odfd.errors import sole_faults

    with sole_faults():
        return trio.run(_rerun, case, place)


async def _rerun(case: Unpacked, place: Path) -> RecheckAnswer:
    import trio

    from engines.provision.host import SparkOptions, spark_engine
    from odfd.trust.evidence.bundle import IncompleteBundle
    from odfd.trust.validation.recheck import Result, recheck, without_engine

    if isinstance(case, IncompleteBundle):
        return without_engine(case, Result.INCOMPLETE, case.missing)
    for name in ("engine", "cache", "staging"):
        (place / name).mkdir()
    options = SparkOptions(scratch=place / "engine", cache=place / "cache", cores=os.cpu_count() or 1)
    host = await spark_engine(options, os.environ, _silent)
    with trio.move_on_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            await nursery.start(host.engine.run)  # type: ignore[arg-type]  # trio cannot name what it passes
            found = await recheck(case, host.engine, place / "staging")
            nursery.cancel_scope.cancel()
        return found
    return without_engine(case, Result.UNABLE, f"the re-run took longer than {PATIENCE_SECONDS:g} s")


def _silent(event: str, facts: Mapping[str, object]) -> None:
    """Ignores the engine's events: only its answer or fault counts."""


def _view(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer with its cells in the place where ``trust show`` has them."""
    finding = answer.pop("finding", None) or {}
    view = {name: value for name, value in answer.items() if value is not None}
    return {**view, "message": finding.get("message", ""), "cells": finding.get("cells", [])}


def _text(view: dict[str, Any]) -> str:
    where = f"{formatting.identity(view['dataset'])} #{view['sequenceNumber']}"
    lines = [f"{view['result']}   {where}, signed {view['signedAt']}", f"  {_SAYING[view['result']]}"]
    if view["reason"]:
        lines.append(f"  {clean(view['reason'], 300)}")
    if view["cells"]:
        evidence = wire.EvidenceView(
            id="",
            kind="mismatch",
            dataset=view["dataset"],
            block=view["sequenceNumber"],
            message=view["message"],
            cells=tuple(wire.CellView(block=view["sequenceNumber"], **cell) for cell in view["cells"]),
        )
        lines += ["", *evidence_lines(evidence)]
    return "\n".join(lines)
