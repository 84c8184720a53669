"""``status``, ``doctor``, ``watch``, ``backup``, ``gc``: show and keep the state of the node."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from chain.instant import SECOND
from odfd import output
from odfd.cli import formatting
from odfd.cli.command import Commands, argument, seconds
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, Stack, TableColumn, clean, fields, render
from odfd.cli.watch_retry import resume
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import ExitCode, Unreachable
from odfd.usage import how_many

BOOKMARK: Final = "bookmark"
"""Kind of the line that says where in which log the stream begins. It is not printed."""
RESET: Final = "reset"
"""Kind of an event: rights of the account changed, and the stream begins anew."""
LOOK_SECONDS: Final = 0.1
"""Seconds between two attempts to reach a daemon that is starting."""
_MARKS = {"ok": "ok", "warning": "warning", "failed": "FAILED"}


commands = Commands()


@commands.add(
    "status",
    argument("--wait", metavar="D", help="wait for this long until a starting daemon answers: 30s, 5m"),
    description="Print this node's name and key, peers, datasets, engine and disk. To an account: what concerns the "
    "datasets that it may read.",
    epilog="example:  odfctl status -o json | jq -r '.listen[0]'\n          odfd run & odfctl status --wait 30s",
)
def _status(session: Session, args: argparse.Namespace) -> None:
    patience = seconds(args.wait) if args.wait else 0
    began = session.clock.monotonic()
    while True:
        try:
            sent = session.client.ask(calls.about_status())
            break
        except Unreachable:
            if session.clock.monotonic() - began >= patience * SECOND:
                raise
        session.clock.sleep(LOOK_SECONDS)
        session = Session(args)
    session.show(sent, lambda _: status_text(Answer.of(sent, wire.Status).value))


def status_text(status: wire.Status) -> str:
    disk = status.disk
    counted = _counts_text(status.datasets)
    total = sum(status.datasets.values())
    if status.account is not None:
        return account_status_text(status)
    return fields(
        [
            ("node", f"{status.name or '(unnamed)'}  {status.node_id}"),
            ("verdicts", f"by {status.validator_key}" if status.validator_key else ""),
            (
                "version",
                f"{status.version}  pid {status.pid}  up since {formatting.moment(status.started_at)}",
            ),
            ("listen", "\n".join(status.listen) or "nowhere"),
            ("http", "\n".join(status.http)),
            ("flight", "\n".join(status.flight)),
            ("api", "\n".join(status.api)),
            ("networks", ", ".join(status.networks) or "none: odfctl network join NAME --bootstrap ADDRESS"),
            ("peers", str(status.peers)),
            ("reached", f"by way of {formatting.plural(status.relays, 'relay')}" if status.relays else ""),
            ("carries", _carries(status)),
            (
                "datasets",
                f"{total}  ({counted}), {status.published} published"
                if counted
                else "none: odfctl apply, odfctl mirror add",
            ),
            ("engine", _engine(status.engine)),
            ("blocked", _blocked_text(status.blocked)),
            ("disk", _disk(disk)),
            ("signing", _signing(status.lost_journals)),
            ("memory", formatting.size(status.memory) if status.memory else ""),
            ("tasks", str(status.tasks)),
            ("flows", _flows(status.flows)),
            ("troubles", "\n".join(f"{name} {clean(text, WHOLE)}" for name, text in status.troubles.items())),
        ]
    )


def account_status_text(status: wire.Status) -> str:
    """Formats the status for an account: counts for the datasets that it may read, and that the node is up."""
    datasets, mirrors = (f"{sum(each.values())}  ({_counts_text(each)})" for each in (status.datasets, status.mirrors))
    return fields(
        [
            ("node", status.name or "(unnamed)"),
            ("version", f"{status.version}  up since {formatting.moment(status.started_at)}"),
            ("account", f"{status.account}: all below counts only what it may read" if status.account else "none"),
            ("datasets", f"{datasets}, {status.published} published" if status.datasets else "none"),
            ("mirrors", mirrors if status.mirrors else ""),
            ("tasks", str(status.tasks)),
            ("flows", _flows(status.flows)),
        ]
    )


def _counts_text(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items()))


def _carries(status: wire.Status) -> str:
    if not status.reserved and not status.circuits:
        return ""
    peers = formatting.plural(status.reserved, "peer")
    return f"{formatting.plural(status.circuits, 'circuit')}, for {peers} that other nodes cannot reach"


def _blocked_text(count: int) -> str:
    if not count:
        return ""
    return f"{formatting.plural(count, 'dataset')} of another engine: odfctl doctor names them"


def _engine(engine: wire.EngineView | None) -> str:
    if engine is None:
        return "none started"
    digest = formatting.digest(engine.digest) if engine.digest else ""
    sandbox = f"sandbox {engine.sandbox}" if engine.sandbox else ""
    state = engine.state.replace("-", " ") + (f": {clean(engine.message, WHOLE)}" if engine.message else "")
    return "  ".join(filter(None, (engine.name, digest, sandbox, state + _session(engine))))


def _session(engine: wire.EngineView) -> str:
    """Says whether Java runs in the engine's processes, where it does not run in all."""
    found = {one.session for one in engine.processes} - {"ready"}
    if "failed" in found:
        return "; Java did not start for a request: odfctl doctor"
    if "starting" in found:
        return "; Java starts"
    return "; ingests and merges run, Java starts with the first query" if found else ""


def _flows(flows: wire.FlowCounts | None) -> str:
    if flows is None or not flows.flows:
        return ""
    parts = [str(flows.flows), f"{flows.running} running"]
    parts += [f"next {flows.next} at {formatting.moment(flows.next_at)}"] if flows.next else ["nothing due"]
    shown = sorted(flows.failing)[:3]
    failing = [f"{name} failed {formatting.plural(flows.failing[name], 'time')} in a row" for name in shown]
    more = len(flows.failing) - len(shown)
    return ", ".join([*parts, *failing, *([f"{more} more failed: odfctl get flows"] if more else [])])


def _signing(lost: int) -> str:
    return f"stopped for {formatting.plural(lost, 'key')}: odfctl doctor" if lost else ""


def _disk(disk: wire.DiskView | None) -> str:
    if not disk:
        return ""
    sizes = {"objects": disk.objects, "database": disk.database}
    held = "".join(f", {formatting.size(size)} {name}" for name, size in sizes.items() if size is not None)
    return f"{formatting.size(disk.free)} free of {formatting.size(disk.total)} at {disk.path}{held}"


@commands.add(
    "doctor",
    argument(
        "--deep",
        action="store_true",
        help="also check every page, index, seal and link of the database, which can take minutes",
    ),
    description="Check everything that the node depends on, and say what to do. Ends with 0 when all is well, 1 when "
    "a check failed. It is cheap; --deep reads the whole database. odfctl verify checks blocks and "
    "objects.",
    example="--deep",
)
def _doctor(session: Session, args: argparse.Namespace) -> int:
    probes = _probes(session, deep=args.deep)
    session.answer(probes, doctor_text)
    return ExitCode.NO if any(probe.result == "failed" for probe in probes.value) else ExitCode.OK


def doctor_text(probes: Sequence[wire.Probe]) -> str:
    """Formats a table, with the remedies below it, since they may be long and must be shown in full."""
    columns: tuple[TableColumn[wire.Probe], ...] = (
        TableColumn("PROBE", lambda probe: probe.name),
        TableColumn("RESULT", lambda probe: _MARKS.get(probe.result, probe.result)),
        TableColumn("FOUND", lambda probe: probe.message, most=WHOLE),
    )
    hints = fields((f"  {probe.name}", clean(probe.hint, WHOLE)) for probe in probes)
    return Stack([render(columns, probes), *(["", "to do:", hints] if hints else [])])


def _probes(session: Session, *, deep: bool) -> Answer[list[wire.Probe]]:
    """Collects the probes' results, and on a terminal shows the progress."""
    found: list[Answer[wire.Probe]] = []
    stream = output.error_stream()
    shows = not session.quiet and output.draws(stream)
    try:
        for probe in session.client.stream(calls.about_examine(deep=deep, each=not deep)):
            found.append(probe)
            if shows:
                output.draw(stream, f"Examining the node  {len(found)} done, last: {clean(probe.value.name, WHOLE)}")
    finally:
        if shows:
            output.draw(stream, "")
    return Answer([probe.value for probe in found], [probe.sent for probe in found])


@commands.add(
    "watch",
    argument("kinds", nargs="*", metavar="KIND"),
    argument(
        "--since", type=int, metavar="N", help="begin after event number N; 0: with the oldest event that is kept"
    ),
    description="Print events as they happen, until ^C. KIND is a kind or its beginning: mirror, verdict.mismatch.",
    example="--since 0 dataset verdict",
)
def _watch(session: Session, args: argparse.Namespace) -> None:
    output.end_when_unread()
    try:
        for event in _events(session, args.kinds, args.since):
            session.line(event.sent, _event_text(event.value))
    except KeyboardInterrupt:
        # The usual end of watching.
        return


def _events(session: Session, names: Sequence[str], since: int | None) -> Iterator[Answer[wire.EventView]]:
    """Yields events of kinds; goes on when the account's rights changed, or the daemon was away."""
    log = ""

    def open_(begun: Callable[[], None]) -> Iterator[Answer[wire.EventView]]:
        nonlocal since, log
        again = True
        while again:
            again = False
            for event in session.client.stream(calls.events_follow(kind=names, since=since, log=log), begun):
                again = event.value.kind == RESET
                since = None if again else event.value.sequence
                if event.value.kind == BOOKMARK:
                    log = event.value.data["log"]
                else:
                    yield event

    return resume(session, open_)


def _event_text(event: wire.EventView) -> str:
    if event.kind in ("lagged", RESET):
        return f"{'':>6}  {event.message}"
    time = formatting.moment(event.time)
    return clean(f"{event.sequence:>6}  {time}  {event.kind:<20}  {event.subject}  {event.message}", 400)


@commands.add(
    "backup",
    argument("to", metavar="DIR"),
    argument("--keep", type=how_many, default=7, metavar="N", help="number of snapshots to keep (7)"),
    description="Copy the state of the running node, as of one moment, into a folder: datasets, statements, keys. A "
    "later backup into the same folder copies only new objects. The daemon writes the folder, so its user "
    "needs the right to. It contains secret keys: keep it where only you can read it. Signing journals "
    "are left out; odfctl restore says why.",
    example="/mnt/backup/alice --keep 14",
)
def _backup(session: Session, args: argparse.Namespace) -> None:
    request = wire.BackupRequest(to=str(Path(args.to).expanduser().resolve()), keep=args.keep)
    done = submit(session, calls.backups_backup(request), wire.BackupResult)
    session.answer(done, backup_text)


def backup_text(done: wire.BackupResult) -> str:
    dropped = f", {formatting.plural(done.dropped, 'older snapshot')} removed" if done.dropped else ""
    large = formatting.plural(done.copied, "large object")
    copied = f"{large} copied ({formatting.size(done.bytes)}) of {done.objects:,}"
    small = f"the database ({formatting.size(done.database)}) with {formatting.plural(done.small, 'small object')}"
    restore = f"odfctl restore {Path(done.snapshot).parent.parent} DIR"
    return f"backed up to {done.snapshot}: {small}, {copied}{dropped}\n{restore}"


_OBJECTS: tuple[TableColumn[wire.CollectedObject], ...] = (
    TableColumn("OBJECT", lambda item: item.name),
    TableColumn("SIZE", lambda item: formatting.size(item.size), right=True),
)


@commands.add(
    "gc",
    argument("--dry-run", action="store_true", help="print what would be freed, and free nothing"),
    description=(
        "Free the disk of objects that no block names any more, such as those of a compacted dataset. Objects "
        "that were read since the last collection wait for the next one, because a reader may still need "
        "them. Statements that were superseded long ago are dropped from the trust ledger. The daemon does "
        "this every node.collect-hours."
    ),
    example="--dry-run",
)
def _gc(session: Session, args: argparse.Namespace) -> None:
    request = wire.CollectRequest(dry_run=args.dry_run)
    session.answer(submit(session, calls.collection_collect(request), wire.CollectResult), collected_text)


def collected_text(done: wire.CollectResult) -> str:
    verb = "would be freed" if done.dry_run else "freed"
    lines = [f"{formatting.plural(done.objects, 'object')}, {formatting.size(done.bytes)}, {verb}"]
    if done.waiting:
        waiting = f"{formatting.plural(done.waiting, 'object')}, {formatting.size(done.waiting_bytes)}"
        lines.append(f"  {waiting}, more that no block names: read or written a moment ago, they wait for the next gc")
    if done.statements:
        dropped = formatting.plural(done.statements, "superseded statement")
        lines.append(f"  {dropped} of the trust ledger {'would be deleted' if done.dry_run else 'deleted'} too")
    if done.folds:
        dropped = f"{formatting.plural(done.folds, 'fold')}, {formatting.size(done.fold_bytes)}"
        lines.append(f"  {dropped}, of dropped histories {'would be deleted' if done.dry_run else 'deleted'} too")
    if done.listed:
        lines += ["", render(_OBJECTS, done.listed)]
    if done.unlisted:
        lines.append(f"and {done.unlisted:,} more")
    return Stack(lines)
