"""``status``, ``doctor``, ``watch``: show the state of the node, its problems, and its events."""

from __future__ import annotations

import argparse
from typing import Any, Final

from chain.instant import SECOND
from odfd.cli import conditions, words
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, clean, fields, render
from odfd.errors import ExitCode, Unreachable

LOOK_SECONDS: Final = 0.1
"""Between two looks for a daemon that is starting."""
_MARKS = {"ok": "ok", "warning": "warning", "failed": "FAILED"}


def register(subparsers: Any) -> None:
    status = subparsers.add_parser(
        "status",
        help="who this node is",
        description="Who this node is, its peers, datasets, engine and disk.",
        epilog="example:  odfctl status -o json | jq -r '.listen[0]'\n          odfd run & odfctl status --wait 30s",
    )
    status.add_argument("--wait", metavar="D", help="for a daemon that is starting: 30s, 5m; so long until it answers")
    status.set_defaults(run=_status)
    doctor = subparsers.add_parser(
        "doctor",
        help="try what the node stands on",
        description="Try everything the node stands on, and say what to do. Ends with 0 when all is well, 1 when"
        " something failed. It costs little; --deep reads all of the database. Blocks and objects are verify's.",
        epilog="example:  odfctl doctor --deep",
    )
    doctor.add_argument(
        "--deep", action="store_true", help="every page, index, seal and link of the database: minutes, for large ones"
    )
    doctor.set_defaults(run=_doctor)
    watch = subparsers.add_parser(
        "watch",
        help="what happens, as it happens",
        description="Events as they happen, until ^C. KIND is one or the beginning of one: mirror, verdict.mismatch.",
        epilog="example:  odfctl watch --since 0 dataset verdict",
    )
    watch.add_argument("kinds", nargs="*", metavar="KIND")
    watch.add_argument("--since", type=int, metavar="N", help="from the one after number N on; 0: all that are kept")
    watch.set_defaults(run=_watch)


def _status(args: argparse.Namespace) -> int:
    session = Session(args)
    patience = conditions.seconds(args.wait) if args.wait else 0
    began = session.clock.monotonic()
    while True:
        try:
            session.answer(session.client.get("/status"), status_text)
            return ExitCode.OK
        except Unreachable:
            if session.clock.monotonic() - began >= patience * SECOND:
                raise
        session.clock.sleep(LOOK_SECONDS)
        session = Session(args)


def status_text(status: dict[str, Any]) -> str:
    engine, disk = status.get("engine"), status.get("disk")
    counted = ", ".join(f"{number} {state}" for state, number in sorted(status["datasets"].items()))
    total = sum(status["datasets"].values())
    shown = "none started"
    if engine:
        bits = [engine["name"], words.digest(engine.get("digest")), f"sandbox {engine.get('sandbox')}", engine["state"]]
        shown = "  ".join(bit for bit in bits if bit != words.NOTHING and not bit.endswith("None"))
    return fields(
        [
            ("node", f"{status.get('name') or '(unnamed)'}  {status['nodeId']}"),
            (
                "version",
                f"{status['version']}  pid {status.get('pid')}  up since {words.moment(status.get('startedAt'))}",
            ),
            ("listen", "\n         ".join(status.get("listen", [])) or "nowhere"),
            ("http", "\n         ".join(status.get("http", []))),
            ("networks", ", ".join(status.get("networks", [])) or "none: odfctl network join NAME --bootstrap ADDRESS"),
            ("peers", str(status["peers"])),
            (
                "datasets",
                f"{total}  ({counted}), {status.get('published', 0)} published"
                if counted
                else "none: odfctl apply, odfctl mirror add",
            ),
            ("engine", shown),
            ("disk", _disk(disk)),
            ("signing", _signing(status.get("lostJournals", 0))),
            ("memory", words.size(status["memory"]) if status.get("memory") else ""),
            ("tasks", str(status.get("tasks", 0))),
        ]
    )


def _signing(lost: int) -> str:
    return f"stopped for {words.plural(lost, 'key')}: odfctl doctor" if lost else ""


def _disk(disk: dict[str, Any] | None) -> str:
    if not disk:
        return ""
    held = "".join(
        f", {words.size(disk[name])} {name}" for name in ("objects", "database") if disk.get(name) is not None
    )
    return f"{words.size(disk['free'])} free of {words.size(disk['total'])} at {disk['path']}{held}"


def _doctor(args: argparse.Namespace) -> int:
    session = Session(args)
    deep = session.client.stream("/doctor", {"deep": "true"}) if args.deep else None
    probes = session.client.get("/doctor") if deep is None else list(deep)
    columns = (
        TableColumn("PROBE", lambda probe: probe["name"]),
        TableColumn("RESULT", lambda probe: _MARKS.get(probe["result"], probe["result"])),
        TableColumn("FOUND", lambda probe: probe["message"], most=100),
        TableColumn("TO DO", lambda probe: probe.get("hint", ""), most=120),
    )
    session.answer(probes, lambda rows: render(columns, rows))
    return ExitCode.NO if any(probe["result"] == "failed" for probe in probes) else ExitCode.OK


def _watch(args: argparse.Namespace) -> int:
    session = Session(args)
    query: dict[str, object] = {"kind": args.kinds} if args.kinds else {}
    if args.since is not None:
        query["since"] = args.since
    try:
        for event in session.client.stream("/events", query):
            session.line(event, _event_text)
    except KeyboardInterrupt:
        # The way in which watching is meant to end.
        return ExitCode.OK
    raise session.client.gone()


def _event_text(event: dict[str, Any]) -> str:
    if event["kind"] == "lagged":
        return f"{'':>6}  {event['message']}"
    time = words.moment(event["time"])
    return clean(f"{event['sequence']:>6}  {time}  {event['kind']:<20}  {event['subject']}  {event['message']}", 400)
