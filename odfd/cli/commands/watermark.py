"""``watermark``: sets the watermark of a root dataset, which says that no older rows will come."""

from __future__ import annotations

import argparse

from odfd.cli.command import REF, Commands, argument
from odfd.cli.commands.ingest_pull import outcome
from odfd.cli.progress import follow
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part

commands = Commands()


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
