"""``raw``: keeps the bytes of a dataset's source, and computes its blocks again from them."""

from __future__ import annotations

import argparse

from odfd.cli import formatting
from odfd.cli.command import REF, YES, Commands, argument, confirm
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, clean, render
from odfd.control import calls, wire
from odfd.errors import ExitCode

commands = Commands()
raw = commands.group(
    "raw",
    description="Captures are the bytes of a dataset's source as they came. Each is stored in one transaction with "
    "the time and the blocks that were made from it, so that the blocks can be computed from it again, "
    "exactly. They are made while the dataset has the annotation keepRaw: true, or the Source it takes from says so.",
    hint="odfctl annotate dataset NAME keepRaw=true  keeps bytes from then on, and keepRaw-  ends it",
    example="list nyc.flights",
)


@raw.add("list", REF, help="list captures, newest first", example="nyc.flights")
def _list(session: Session, args: argparse.Namespace) -> None:
    answer = session.client.do(calls.raw_show(args.ref))
    session.answer(answer, lambda row: render(_COLUMNS, row.captures))
    row = answer.value
    session.remark(f"{_total(row)}; " + ("more are kept as they come" if row.keeping else "no more are kept"))


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
    help="write captures to a dataset that others may have",
    description="Write captures to the dataset REF.raw, each at its time, with the bytes as linked objects. It begins "
    "private; published or shared, it lets others decode the bytes again. Repeated, it appends what is new.",
    example="nyc.flights",
)
def _bind(session: Session, args: argparse.Namespace) -> None:
    done = submit(session, calls.raw_bind(args.ref), wire.RawChainView)
    session.answer(done, _bind_text)
    session.remark(f"{session.again} publish {done.value.chain} shows the bytes to everybody")


@raw.add(
    "attest",
    REF,
    argument("chain", metavar="CHAIN", help="the dataset of its captures, which is to be here with all data"),
    help="decode the bytes of another node's root again, and sign what was found",
    description="Decode the captures of another node's root again, as its declaration says, compare them with its "
    "blocks, and sign the result for each: decoded or decodes-otherwise. Commands and images of the declaration "
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
def _drop(session: Session, args: argparse.Namespace) -> None:
    if not args.yes:
        kept = session.client.do(calls.raw_show(args.ref)).value
        if kept.count:
            confirm(f"Forget {_total(kept)} of {args.ref}?", f"the bytes of {args.ref} are kept")
    answer = session.client.do(calls.raw_drop(args.ref))
    session.answer(answer, lambda row: f"nothing is kept of the source of {row.dataset}; odfctl gc frees the bytes")


def _total(row: wire.RawView) -> str:
    return f"{formatting.plural(row.count, 'capture')}, {formatting.size(row.bytes)}"


def _result(row: wire.RawReplayResult) -> str:
    checked = row.same + row.equivalent
    lines = [f"{row.ref}: {formatting.plural(checked, 'transaction')} computed again, equal"]
    if row.equivalent:
        lines.append(f"  {row.equivalent} of them with other bytes of the same rows")
    if row.rewritten:
        lines.append(f"  {row.rewritten} captured, and not of its history any more")
    lines += [f"  #{each.sequence_number}: {each.message}" for each in row.differences]
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
    lines += [f"  #{each.sequence_number}: {clean(each.message, 200)}" for each in row.differences]
    lines.append(f"  {formatting.plural(row.signed, 'observation')} signed")
    return "\n".join(lines)


_COLUMNS = (
    TableColumn[wire.CaptureView]("TIME", lambda row: row.time),
    TableColumn[wire.CaptureView]("BLOCK", lambda row: f"#{row.sequence_number}", right=True),
    TableColumn[wire.CaptureView]("BYTES", lambda row: formatting.count(sum(f.size for f in row.files)), right=True),
    TableColumn[wire.CaptureView]("FILES", lambda row: ", ".join(file.name for file in row.files)),
    TableColumn[wire.CaptureView]("LABEL", lambda row: row.label or formatting.NOTHING),
)
