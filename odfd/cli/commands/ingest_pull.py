"""``ingest``, ``pull``, ``watermark``, ``flow``: bring new data into datasets, and move their watermarks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from chain.errors import Environment, NotFound
from odfd import output
from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.dataset_text import rows_text
from odfd.cli.progress import follow, result_of, submit
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import wire
from odfd.control.client import Answer, part
from odfd.errors import Bug, ExitCode, Usage, exit_code, from_problem
from odfd.errors import render as render_fault

commands = Commands()


@commands.add(
    "ingest",
    REF,
    argument("files", nargs="+", metavar="FILE|-"),
    argument("--format", metavar="FORMAT", help="csv, ndjson, json, parquet, …; else as the source says"),
    argument("--event-time", metavar="T", help="for records without one, like 2024-05-01T12:30:00Z"),
    argument("--source", metavar="NAME", help="the push source, where there are several"),
    argument("--id", metavar="ID", help="of this push, which is taken in once; else its content tells"),
    argument("--again", action="store_true", help="take it in although it was pushed before"),
    argument("--preview", action="store_true", help="show what would be read of one file, and push nothing"),
    description=(
        "Push files, or standard input (-), into a root dataset. Each file of a snapshot source is a snapshot, in\n"
        "the order given; other sources take all files in one transaction. The same files pushed again are\n"
        "answered as the first time, and nothing is appended twice."
    ),
    example="nyc.flights january.csv --format csv",
)
def _ingest(session: Session, args: argparse.Namespace) -> int:
    if args.preview:
        return _preview(session, args)
    request = wire.IngestRequest(
        uploads=tuple(_send(session, name).id for name in args.files),
        format=args.format,
        event_time=args.event_time,
        source=args.source,
        id=args.id,
        again=args.again,
    )
    return outcome(session, submit(session, f"/datasets/{part(args.ref)}/ingest", request, wire.PullResult).sent)


def _preview(session: Session, args: argparse.Namespace) -> int:
    """Previews by the source of the dataset, without a declared format."""
    from odfd.cli.offline.new import preview

    if len(args.files) != 1 or args.files[0] == "-":
        raise Usage("a preview is of one file", hint="name it")
    source = None
    if args.format is None:
        source = session.client.get(f"/datasets/{part(args.ref)}/detail", wire.DatasetDetail).value.source
    return preview(session, args.files[0], source, args.format)


def _send(session: Session, name: str) -> wire.Upload:
    if name == "-":
        return session.client.upload("-", sys.stdin.buffer).value
    try:
        with Path(name).open("rb") as file:
            return session.client.upload(Path(name).name, file).value
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {name}", hint="name files, or - for standard input") from error
    except (IsADirectoryError, PermissionError) as error:
        raise Environment(f"cannot read {name}: {error.strerror}", rule="file") from error


@commands.add(
    "pull",
    argument("refs", nargs="*", metavar="REF", help="a dataset that is here, or REPOSITORY/DATASET"),
    argument("--as", dest="as_name", metavar="NAME", help="local name of what comes from a repository"),
    argument("--all", action="store_true", help="everything here"),
    argument("--recursive", action="store_true", help="inputs first"),
    argument("--repair", action="store_true", help="look at every object again, fetch damaged ones anew"),
    argument(
        "--fetch-uncacheable",
        action="store_true",
        help="also from sources that were read and cannot tell whether they changed",
    ),
    description="Bring datasets up to date: poll the source, run the transform, sync the mirror.\n"
    "REPOSITORY/DATASET is taken in from a repository, after everything of it is verified (odfctl repo).",
    epilog="example:  odfctl pull nyc.flights.delays --recursive\n\n"
    "exit code 1: something is not up to date, or is a mirror with no peer connected that could tell",
)
def _pull(session: Session, args: argparse.Namespace) -> int:
    if bool(args.refs) == args.all:
        raise Usage("say what to pull: names of datasets, or --all", hint="odfctl get datasets lists them")
    return outcome(session, result_of(session, "/pull", pull_request(args)))


def pull_request(args: argparse.Namespace) -> dict[str, object]:
    """Builds the JSON of a ``wire.PullRequest`` without loading its type, as most pulls have little to do."""
    fields = {
        "refs": args.refs,
        "all": args.all,
        "recursive": args.recursive,
        "repair": args.repair,
        "fetchUncacheable": args.fetch_uncacheable,
        "asName": args.as_name,
    }
    return {name: value for name, value in fields.items() if value}


_COLUMNS: tuple[TableColumn[wire.PullItem], ...] = (
    TableColumn("NAME", lambda item: item.ref),
    TableColumn("DONE", lambda item: item.outcome),
    TableColumn("BLOCKS", lambda item: f"+{item.blocks:,}" if item.blocks else formatting.NOTHING, right=True),
    TableColumn("RECORDS", lambda item: f"+{item.records:,}" if item.records else formatting.NOTHING, right=True),
    TableColumn("HEAD", lambda item: formatting.digest(item.head)),
    TableColumn("", lambda item: _beside(item), most=200),
)


def _beside(item: wire.PullItem) -> str:
    return "; ".join(part for part in (item.message, rows_text(item.rows)) if part)


def outcome(session: Session, sent: Any) -> int:
    """Shows the JSON of a ``wire.PullResult``; loads types only for a table."""
    items = sent.get("items") if isinstance(sent, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise Bug("the daemon's answer tells nothing that was pulled", rule="answer-type")
    session.show(sent, lambda _: render(_COLUMNS, Answer.of(sent, wire.PullResult).value.items))
    code = ExitCode.OK
    for item in items:
        if item.get("fault"):
            fault = from_problem(item["fault"])
            output.remark(render_fault(fault, session.verbose))
            code = max(code, ExitCode(exit_code(fault)))
        elif item.get("outcome") in ("failed", "blocked"):
            code = max(code, ExitCode.NO)
    return code


@commands.add(
    "watermark",
    REF,
    argument("time", metavar="TIME", help="like 2024-05-01T12:30:00Z"),
    argument("--ahead", action="store_true", help="also when it is more than a day ahead of the clock"),
    description="Move the watermark of a root dataset by hand, as when its source has gone quiet: windows over it\n"
    "close up to there, and what comes later with an earlier time is late. It never goes back.",
    example="nyc.flights 2013-12-31T00:00:00Z",
)
def _watermark(session: Session, args: argparse.Namespace) -> int:
    request = wire.WatermarkRequest(time=args.time, ahead=args.ahead)
    ref = session.client.put(f"/datasets/{part(args.ref)}/watermark", wire.TaskRef, request).value
    return outcome(session, follow(session, ref, wire.PullResult).sent)


@commands.add(
    "advance",
    REF,
    description="Promise that no block of an earlier time than now will follow, for those who read the dataset at a\n"
    "time. It adds no block, and is not taken back; later blocks get later times.",
    example="nyc.flights",
)
def _advance(session: Session, args: argparse.Namespace) -> int:
    ref = session.client.put(f"/datasets/{part(args.ref)}/upper", wire.TaskRef).value
    return outcome(session, follow(session, ref, wire.PullResult).sent)


flow = commands.group(
    "flow",
    description="A flow pulls a dataset when its schedule says so, or when other datasets have new data. Derived"
    " datasets that no flow names follow their inputs, and go by their own name here. odfctl get flows lists all.",
    example="pause fx-daily",
)


_NAME = argument("name", metavar="NAME", help="of the flow, or of the derived dataset")


@flow.add(
    "pause",
    _NAME,
    help="run it no more for now, over restarts too; what passes meanwhile is not caught up",
    description="Run it no more for now, over restarts too; what passes meanwhile is not caught up.",
    example="fx-daily",
)
def _pause(session: Session, args: argparse.Namespace) -> None:
    moved = session.client.put(f"/flows/{part(args.name)}/pause", wire.FlowView)
    session.answer(moved, lambda row: f"{row.name} is paused")


@flow.add(
    "resume",
    _NAME,
    help="go on with one that was paused",
    description="Go on with one that was paused.",
    example="fx-daily",
)
def _resume(session: Session, args: argparse.Namespace) -> None:
    moved = session.client.delete(f"/flows/{part(args.name)}/pause", wire.FlowView)
    session.answer(moved, lambda row: f"{row.name} goes on" + (f", next at {row.next}" if row.next else ""))
