"""``catalog``: writes manifests for the datasets of a DCAT feed, to look at and to apply."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from chain.wording import plural
from odfd import output
from odfd.cli.command import REPLACE, Commands, argument
from odfd.cli.commands.apply import web_bytes
from odfd.cli.new_file import NewFile
from odfd.cli.offline import files
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, TableColumn, clean, render

if TYPE_CHECKING:
    from odfd.cli.offline.sampling.dcat_feed import Feed, FoundSource

SHOWN: Final = 10
"""Datasets left out that are listed with the reason."""

commands = Commands()


@commands.add(
    "catalog",
    argument("feed", metavar="FILE|URL"),
    argument(
        "-O",
        "--to",
        metavar="FILE",
        default="sources.yaml",
        help="where the manifests are written (sources.yaml); - prints them",
    ),
    REPLACE,
    description="Read a DCAT feed in JSON-LD and write a manifest for each of its datasets: a source "
    "dataset that polls a web "
    "file, or a mirror of a dataset of Open Data Fabric (†: no daemon needed). Nothing that the feed names is "
    "fetched. Look at the manifests, then apply them.",
    epilog="example:  odfctl catalog https://data.example/catalog.jsonld\n          odfctl apply -f sources.yaml",
)
def _catalog(session: Session, args: argparse.Namespace) -> None:
    from odfd.cli.offline.sampling.dcat_feed import MAX_FEED, read_feed

    manifests = None if args.to == "-" else NewFile(args.to, replace=args.replace)
    is_url = args.feed.startswith(("http://", "https://"))
    raw = web_bytes(args.feed, MAX_FEED) if is_url else files.read_limited(args.feed, MAX_FEED, "feed")
    feed = read_feed(raw, args.feed)
    text = "---\n".join(each.manifest.rstrip("\n") + "\n" for each in feed.found)
    if manifests is None:
        output.say(text.rstrip("\n"))
    elif feed.found:
        manifests.write(text)
        session.show(_to_json(feed, args.to), lambda _: _table(feed))
    for each in feed.left_out[:SHOWN]:
        session.remark(f"left out: {clean(each.title, 80)}: {each.why}")
    session.remark(_count(feed))
    if args.to != "-" and feed.found:
        session.remark(f"{args.to} is written; look at it, and odfctl apply -f {args.to}")


def _to_json(feed: Feed, to: str) -> dict[str, object]:
    return {
        "manifests": to,
        "sources": [{"name": each.name, "format": each.form, "source": each.place} for each in feed.found],
        "leftOut": [{"title": each.title, "why": each.why} for each in feed.left_out],
        "more": feed.more,
    }


def _table(feed: Feed) -> str:
    columns: tuple[TableColumn[FoundSource], ...] = (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("FORMAT", lambda row: row.form),
        TableColumn("SOURCE", lambda row: row.place, most=WHOLE),
    )
    return render(columns, feed.found)


def _count(feed: Feed) -> str:
    said = f"{plural(len(feed.found), 'source')}, {len(feed.left_out)} left out"
    return f"{said}, {feed.more:,} more beyond the limit" if feed.more else said
