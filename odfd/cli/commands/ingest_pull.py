"""``ingest``, ``pull``, ``watermark``, ``advance``: bring new data into datasets, and move their watermarks."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from odfd import output
from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.dataset_text import rows_text
from odfd.cli.new_file import open_file
from odfd.cli.progress import Meter, follow, result_of, submit
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import Bug, ExitCode, Usage, from_problem

commands = Commands()


@commands.add(
    "ingest",
    REF,
    argument("files", nargs="+", metavar="FILE|-"),
    argument(
        "--format",
        metavar="FORMAT",
        help="format of the file: csv, ndjson, json, parquet, … (default: that of the source)",
    ),
    argument("--event-time", metavar="T", help="event time for records without one, like 2024-05-01T12:30:00Z"),
    argument("--source", metavar="NAME", help="name of the push source, if there are several"),
    argument(
        "--id",
        metavar="ID",
        help="idempotency key of this push, which is ingested once (default: the hash of its content)",
    ),
    argument("--again", action="store_true", help="ingest it although it was pushed before"),
    argument("--preview", action="store_true", help="print what would be read from one file, and push nothing"),
    description=(
        "Push files, or standard input (-), into a source dataset. With a snapshot source each file is one "
        "snapshot, in the given order; other sources take all files in one transaction. Pushing the same "
        "files again gives the first answer again and appends nothing."
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
    return outcome(session, submit(session, calls.flow_ingest(args.ref, request), wire.PullResult).sent)


def _preview(session: Session, args: argparse.Namespace) -> int:
    """Previews one file, read by the dataset's source unless a format is given."""
    from odfd.cli.offline.new import preview

    if len(args.files) != 1 or args.files[0] == "-":
        raise Usage("a preview is of one file", hint="name it")
    source = None
    if args.format is None:
        source = session.client.do(calls.datasets_describe(args.ref)).value.source
    return preview(session, args.files[0], source, args.format)


class _Sent(io.RawIOBase):
    """A file that shows its progress while it is sent."""

    def __init__(self, session: Session, file: BinaryIO, name: str) -> None:
        self._file, self._name, self._done = file, name, 0
        self._total = os.fstat(file.fileno()).st_size or None  # None for a pipe too
        self._meter = Meter(session, output.error_stream())

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._done += len(data)
        message = f"sending {self._name}"
        self._meter.show(
            wire.TaskState(
                kind="ingest", state="running", message=message, done=self._done, total=self._total, unit="bytes"
            )
        )
        return data

    def close(self) -> None:
        self._meter.clear()
        super().close()


def _send(session: Session, name: str) -> wire.Upload:
    if name == "-":
        return session.client.send(calls.flow_stage(name="-"), sys.stdin.buffer).value
    with open_file(name) as file, _Sent(session, file, Path(name).name) as sent:
        return session.client.send(calls.flow_stage(name=Path(name).name), cast("BinaryIO", sent)).value


@commands.add(
    "pull",
    argument(
        "refs", nargs="*", metavar="REF", help="a dataset of this node, a pattern (nyc.%%), or REPOSITORY/DATASET"
    ),
    argument(
        "--source", metavar="SOURCE", help="pull from this Source (odfctl get sources) instead of the dataset's own"
    ),
    argument(
        "--time",
        metavar="TIME",
        help="the time that ${{ trigger.time }} in its source stands for, like 2024-05-01T00:00:00Z (default: now)",
    ),
    argument("--as", dest="as_name", metavar="NAME", help="local name for a dataset from a repository"),
    argument("--all", action="store_true", help="all datasets of this node"),
    argument("--recursive", action="store_true", help="pull inputs first"),
    argument("--repair", action="store_true", help="check every object, and fetch damaged ones again"),
    argument(
        "--fetch-uncacheable",
        action="store_true",
        help="also read sources again that cannot say whether they changed",
    ),
    description="Bring datasets up to date: poll the source, run the transform, sync the mirror. REPOSITORY/DATASET "
    "is pulled from a repository and verified before it counts (odfctl repo).",
    epilog="example:  odfctl pull nyc.flights.delays --recursive\n\n"
    "exit code 1: something is not up to date, or is a mirror with no connected peer to ask",
)
def _pull(session: Session, args: argparse.Namespace) -> int:
    if bool(args.refs) == args.all:
        raise Usage("say what to pull: names of datasets, or --all", hint="odfctl get datasets lists them")
    if any("%" in ref or "_" in ref for ref in args.refs):
        from odfd.cli.kinds import datasets_meant  # other pulls need no kinds

        args.refs = list(datasets_meant(session, args.refs))
    return outcome(session, result_of(session, calls.flow_pull(cast("wire.PullRequest", pull_request(args)))))


def pull_request(args: argparse.Namespace) -> dict[str, object]:
    """Builds the JSON of a ``wire.PullRequest`` without loading its type, as most pulls have little to do."""
    fields = {
        "refs": args.refs,
        "all": args.all,
        "recursive": args.recursive,
        "repair": args.repair,
        "fetchUncacheable": args.fetch_uncacheable,
        "asName": args.as_name,
        "source": args.source,
        "time": args.time,
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
    """Shows the JSON of a ``wire.PullResult``, and loads types only for a table. Returns the exit code."""
    items = sent.get("items") if isinstance(sent, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise Bug("the daemon's answer names nothing that was pulled", rule="answer-type")
    session.show(sent, lambda _: render(_COLUMNS, Answer.of(sent, wire.PullResult).value.items))
    if not items:
        session.remark("nothing to pull: no dataset here has a source that is polled, a transform, or a mirror")
    code = ExitCode.OK
    for item in items:
        if item.get("fault"):
            code = max(code, session.failure(str(item.get("ref", "")), from_problem(item["fault"])))
        elif item.get("outcome") in ("failed", "blocked"):
            code = max(code, ExitCode.NO)
        _tell_conflicts(session, item)
    return code


def _tell_conflicts(session: Session, item: Mapping[str, Any]) -> None:
    """Remarks on rows that a ledger did not take, because it has others with their keys."""
    counts = item.get("rows")
    if isinstance(counts, dict) and (number := counts.get("conflicting")):
        ref, rows = item.get("ref"), formatting.plural(number, "conflicting row")
        hint = f"odfctl correct {ref} changes them by hand"
        session.remark(f"{ref}: {rows} not taken, as the ledger strategy keeps the first values of a key\n  {hint}")


@commands.add(
    "watermark",
    REF,
    argument("time", metavar="TIME", help="like 2024-05-01T12:30:00Z"),
    argument("--ahead", action="store_true", help="allow a time more than a day ahead of the clock"),
    description="Move the watermark of a source dataset by hand, for example when its source has no new rows: windows "
    "over it close up to that time, and later rows with an earlier time are late. A watermark never moves "
    "back.",
    example="nyc.flights 2013-12-31T00:00:00Z",
)
def _watermark(session: Session, args: argparse.Namespace) -> int:
    request = wire.WatermarkRequest(time=args.time, ahead=args.ahead)
    ref = session.client.do(calls.flow_set_watermark(args.ref, request)).value
    return outcome(session, follow(session, ref, wire.PullResult).sent)


@commands.add(
    "advance",
    REF,
    description="Promise readers that no block with an earlier time than now will follow. This adds no block and "
    "cannot be taken back; later blocks get later times.",
    example="nyc.flights",
)
def _advance(session: Session, args: argparse.Namespace) -> int:
    ref = session.client.do(calls.flow_advance(args.ref)).value
    return outcome(session, follow(session, ref, wire.PullResult).sent)
