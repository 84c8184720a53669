"""``reclock``: lets several nodes ingest one source at once, into the same blocks at a repository."""

from __future__ import annotations

import argparse

from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.dataset_text import skipped_text
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import wire
from odfd.control.client import part

commands = Commands()


@commands.add(
    "reclock",
    REF,
    argument("--at", metavar="REPOSITORY", required=True, help="a folder, a bucket or an SFTP server"),
    argument("--chain", metavar="ID", help="ingest as one of several instances; without it a collection begins"),
    argument("--shards", type=int, default=1, metavar="N", help="of a new collection: chains that its rows are in (1)"),
    argument("--by", metavar="COLUMN,…", help="of a new collection: columns whose hash decides the shard of a row"),
    argument("--by-part", action="store_true", help="of a new collection: the file or partition decides the shard"),
    argument("--keep-raw", action="store_true", help="of a new collection: keep what a topic would give again, too"),
    help="ingest a source by several nodes at once, into a repository",
    description="Without --chain: begin a collection at the repository, with the source that the dataset declares, and"
    " print the id of its reclocking chain. With it: take in what is new, as one of any number of nodes that declare"
    " the same source. Each binds what it fetched to a time before anybody decodes it, so all write the same blocks.",
    example="nyc.flights --at lake --shards 4 --by carrier",
)
def _reclock(session: Session, args: argparse.Namespace) -> None:
    by = tuple(args.by.split(",")) if args.by else ()
    request = wire.ReclockRequest(
        at=args.at, chain=args.chain, shards=args.shards, by=by, by_part=args.by_part, keep_raw=args.keep_raw
    )
    done = submit(session, f"/dataset/v1alpha1/datasets/{part(args.ref)}/reclock", request, wire.ReclockView)
    session.answer(done, lambda row: _begun(row, args.ref) if args.chain is None else _ingested(row))


def _begun(row: wire.ReclockView, ref: str) -> str:
    count = formatting.plural(len(row.shards), "shard")
    again = f"odfctl reclock {ref} --at {row.at} --chain {row.chain}"
    return f"{row.chain} binds {count} at {row.at}\n  {again} ingests"


def _ingested(row: wire.ReclockView) -> str:
    found = f"bound {row.bound} and wrote {row.written}; others had written {row.repeated}"
    found += f", and bound before this one {row.forgotten}" if row.forgotten else ""
    return "\n  ".join(filter(None, (found, skipped_text(row.skipped))))
