"""``source``, ``gap``, ``raw``: what was pushed to a Source, what it let go of, and the bytes that are kept of it.

Spec: docs/spec/collections.md#gaps.
"""

from __future__ import annotations

import argparse
import sys

from odfd.cli import formatting
from odfd.cli.command import REF, YES, Commands, argument, confirm
from odfd.cli.new_file import open_file
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, clean, render
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import ExitCode, Usage

commands = Commands()
source = commands.group(
    "source",
    description="A Source with the ingress RestEndpoint is pushed to. What was pushed waits until the datasets that "
    "take from the Source have it.",
    example="push sensor.temp readings.ndjson",
)
_NAME = argument("source", metavar="SOURCE")


@source.add(
    "push",
    _NAME,
    argument("file", nargs="?", default="-", metavar="FILE", help="standard input, if it is - or not given"),
    argument("--id", metavar="ID", help="count this push once, however often it is repeated"),
    help="push records to a Source",
    description="Push records to the endpoint of a Source, in the format of its read step.",
    example="sensor.temp readings.ndjson",
)
def _push(session: Session, args: argparse.Namespace) -> None:
    call = calls.endpoints_push(args.source, id_=args.id)
    if args.file == "-":
        receipt = session.client.send(call, sys.stdin.buffer)
    else:
        with open_file(args.file) as file:
            receipt = session.client.send(call, file)
    session.answer(receipt, _receipt)


def _receipt(row: wire.PushReceipt) -> str:
    counted = formatting.plural(row.records, "record")
    if row.repeated:
        return f"push #{row.number} of {row.source} was received before, with {counted}"
    lasts = "" if row.durable else "; it may be lost until a dataset takes it"
    return f"push #{row.number} of {row.source}: {counted}, {formatting.size(row.bytes)}{lasts}"


@source.add("show", _NAME, help="show what waits at a Source", example="sensor.temp")
def _show(session: Session, args: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.endpoints_show(args.source)), _view)


def _view(row: wire.EndpointView) -> str:
    lines = [f"POST {row.path}"]
    if row.pushes:
        waits = f"{formatting.plural(row.records, 'record')} in {formatting.plural(row.pushes, 'push', 'pushes')}"
        lines.append(f"{waits}, {formatting.size(row.bytes)}: #{row.first} to #{row.last}, from {row.oldest_at} on")
    else:
        lines.append("nothing waits")
    if row.dropped:
        lines.append(f"{formatting.plural(row.dropped, 'record')} dropped before a dataset had them")
    return "\n".join(lines)


@source.add(
    "drop",
    _NAME,
    argument("number", nargs="?", type=int, metavar="NUMBER", help="of the push"),
    argument("--all", action="store_true", help="drop all waiting pushes"),
    help="drop a push that no dataset can take",
    description="Drop a push that waits, such as one that a dataset cannot take, or all of them. No dataset gets its "
    "records.",
    example="sensor.temp 7",
)
def _drop(session: Session, args: argparse.Namespace) -> None:
    if (args.number is None) != args.all:
        raise Usage("name the number of a push, or --all", hint=f"odfctl source show {args.source}")
    session.answer(session.client.do(calls.endpoints_drop(args.source, number=args.number)), _view)


gap = commands.group(
    "gap",
    description="A gap is what a topic's broker deleted before it was ingested. It stops each pull, until an operator"
    " accepts that it is lost. Its name is a hash of what is lost, so no more is accepted than was shown. The chain"
    " says what is missing.",
    example="show nyc.flights",
)


@gap.add(
    "show",
    REF,
    help="what the source deleted before it was ingested",
    description="Ask the source what it deleted before it was ingested. The exit code is 1 if something is lost.",
    example="nyc.flights",
)
def _show_gap(session: Session, args: argparse.Namespace) -> int:
    found = _submit(session, args, None)
    session.answer(found, _gap_text)
    return int(ExitCode.NO) if found.value.name is not None else 0


@gap.add(
    "accept",
    REF,
    argument("name", metavar="GAP", nargs="?", help="name of the gap (default: that which is shown, and confirmed)"),
    YES,
    help="continue without it",
    description="Accept that data is lost, and continue without it. The chain states the loss. Refused if no data is"
    " lost, or other data than the name says. Repeated, it has one effect.",
    example="nyc.flights 3f0c9b7a61d2e845",
)
def _accept(session: Session, args: argparse.Namespace) -> None:
    name = args.name
    if name is None:
        found = _submit(session, args, None).value
        name = found.name or "none"
        if found.name is not None and not args.yes:
            session.remark(_gap_text(found))
            confirm(f"Continue without {_count(found)} of {args.ref}?", "nothing was accepted")
    session.answer(_submit(session, args, name), _gap_text)


def _submit(session: Session, args: argparse.Namespace, name: str | None) -> Answer[wire.GapView]:
    request = wire.GapRequest(accept=name)
    return submit(session, calls.gaps_run(args.ref, request), wire.GapView)


def _count(row: wire.GapView) -> str:
    return formatting.plural(row.count, "offset")


def _gap_text(row: wire.GapView) -> str:
    if row.name is None:
        return f"the source of {row.dataset} has no gap"
    said = (
        f"accepted at {row.time}"
        if row.accepted
        else f"odfctl gap accept {row.dataset} {row.name} continues without it"
    )
    return f"gap {row.name} of topic {row.topic}: {_count(row)}; {said}\n{render(_LOST, row.lost)}"


_LOST = (
    TableColumn[wire.LostRange]("PARTITION", lambda row: str(row.partition), right=True),
    TableColumn[wire.LostRange]("FROM", lambda row: str(row.first), right=True),
    TableColumn[wire.LostRange]("TO", lambda row: str(row.last), right=True),
    TableColumn[wire.LostRange]("OFFSETS", lambda row: formatting.count(row.count), right=True),
    TableColumn[wire.LostRange]("TOPIC ID", lambda row: row.topic_id),
)


raw = commands.group(
    "raw",
    description="Captures are the bytes of a dataset's source as received. Each is stored in one transaction with "
    "the time and the blocks that were made from it, so that the blocks can be computed from it again, "
    "exactly. They are made while the dataset has the annotation keepRaw: true, or its Source has spec.keepRaw: true.",
    hint="odfctl annotate dataset NAME keepRaw=true  keeps bytes from then on, and keepRaw-  ends it",
    example="list nyc.flights",
)


@raw.add("list", REF, help="list captures, newest first", example="nyc.flights")
def _list(session: Session, args: argparse.Namespace) -> None:
    answer = session.client.do(calls.raw_show(args.ref))
    session.answer(answer, lambda row: render(_CAPTURES, row.captures))
    row = answer.value
    session.remark(f"{_total(row)}; " + ("new ones are kept" if row.keeping else "new ones are not kept"))


@raw.add(
    "replay",
    REF,
    help="compute the blocks again from captures, and compare",
    description="Compute blocks again from captures, at their times, and compare them with the chain. Nothing is "
    "fetched or written.",
    example="nyc.flights",
)
def _replay(session: Session, args: argparse.Namespace) -> int:
    done = submit(session, calls.raw_replay(args.ref), wire.RawReplayResult)
    session.answer(done, _result)
    return 0 if done.value.ok else int(ExitCode.NO)


@raw.add(
    "bind",
    REF,
    help="write captures to a dataset that can be published",
    description="Write captures to the dataset REF.raw, each at its time, with the bytes as linked objects. It is "
    "private at first; published or shared, it lets other nodes decode the bytes again. Repeated, it appends new ones.",
    example="nyc.flights",
)
def _bind(session: Session, args: argparse.Namespace) -> None:
    done = submit(session, calls.raw_bind(args.ref), wire.RawChainView)
    session.answer(done, _bind_text)
    session.remark(f"{session.again} publish {done.value.chain} shows the bytes to every node")


@raw.add(
    "attest",
    REF,
    argument("chain", metavar="CHAIN", help="the dataset of its captures, which must be here with all data"),
    help="decode the captures of another node's source dataset again, and sign the results",
    description="Decode the captures of another node's source dataset again, as its declaration says, compare the "
    "rows with its blocks, and sign the result for each: decoded or decodes-otherwise. Commands and "
    "images of the declaration "
    "do not run. Ends with 1 if a transaction differs.",
    example="their.flights their.flights.raw",
)
def _attest(session: Session, args: argparse.Namespace) -> int:
    request = wire.AttestRawRequest(chain=args.chain)
    done = submit(session, calls.raw_attest(args.ref, request), wire.RawAttestResult)
    session.answer(done, _attest_text)
    return 0 if done.value.ok else int(ExitCode.NO)


@raw.add(
    "drop",
    REF,
    YES,
    help="delete captures",
    description="Delete the captures of a dataset; the next odfctl gc frees the disk. The dataset's rows stay.",
    example="nyc.flights --yes",
)
def _drop_captures(session: Session, args: argparse.Namespace) -> None:
    if not args.yes:
        kept = session.client.do(calls.raw_show(args.ref)).value
        if kept.count:
            confirm(f"Delete {_total(kept)} of {args.ref}?", f"the bytes of {args.ref} are kept")
    answer = session.client.do(calls.raw_drop(args.ref))
    session.answer(answer, lambda row: f"the captures of {row.dataset} are deleted; odfctl gc frees the bytes")


def _total(row: wire.RawView) -> str:
    return f"{formatting.plural(row.count, 'capture')}, {formatting.size(row.bytes)}"


def _result(row: wire.RawReplayResult) -> str:
    checked = row.same + row.equivalent
    lines = [f"{row.ref}: {formatting.plural(checked, 'transaction')} computed again, equal"]
    if row.equivalent:
        lines.append(f"  {row.equivalent} of them with other bytes of the same rows")
    if row.rewritten:
        lines.append(f"  {row.rewritten} captured, and not of its history any more")
    lines += [f"  #{difference.sequence_number}: {difference.message}" for difference in row.differences]
    return "\n".join(lines)


def _bind_text(row: wire.RawChainView) -> str:
    gaps = f"; {formatting.plural(row.gaps, 'accepted gap')} without bytes" if row.gaps else ""
    return f"{row.chain}: {row.bound} more bound, {formatting.plural(row.total, 'capture')} of {row.ref} in all{gaps}"


def _attest_text(row: wire.RawAttestResult) -> str:
    lines = [f"{row.ref}: {formatting.plural(row.decoded, 'transaction')} decoded again, equal"]
    if row.otherwise:
        lines.append(f"  {row.otherwise} with other rows than their bytes give")
    if row.later:
        lines.append(f"  {row.later} not here yet")
    lines += [f"  #{difference.sequence_number}: {clean(difference.message, 200)}" for difference in row.differences]
    lines.append(f"  {formatting.plural(row.signed, 'observation')} signed")
    return "\n".join(lines)


_CAPTURES = (
    TableColumn[wire.CaptureView]("TIME", lambda row: row.time),
    TableColumn[wire.CaptureView]("BLOCK", lambda row: f"#{row.sequence_number}", right=True),
    TableColumn[wire.CaptureView]("BYTES", lambda row: formatting.count(sum(f.size for f in row.files)), right=True),
    TableColumn[wire.CaptureView]("FILES", lambda row: ", ".join(file.name for file in row.files)),
    TableColumn[wire.CaptureView]("LABEL", lambda row: row.label or formatting.NOTHING),
)
