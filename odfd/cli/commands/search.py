"""``search``: finds datasets of other nodes by words."""

from __future__ import annotations

import argparse
import time
from typing import Final

from odfd.cli import formatting
from odfd.cli.command import Commands, argument, seconds
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, TableColumn, render
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.usage import how_many

commands = Commands()
_AGAIN: Final = 0.25
"""Seconds between two searches."""


@commands.add(
    "search",
    argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="words, or beginnings of words, that must all occur; without any: all datasets",
    ),
    argument("--license", default="", metavar="NAME", help="under this licence, by its short name"),
    argument("--column", default="", metavar="NAME", help="with a column of this name"),
    argument("--since", metavar="SPAN", help="changed within this time: 12h, 30d"),
    argument(
        "--attested", type=int, default=0, metavar="K", help="confirmed by K of the validators on this node's list"
    ),
    argument(
        "--standing",
        action="append",
        default=[],
        metavar="WORD",
        help="with this trust level here: announced, chain, data, observed, attested, reproduced, accused, refuted, "
        "forked or damaged; several times: with one of these",
    ),
    argument("--wait", metavar="SPAN", help="repeat the search for this long until something is found: 30s, 1m"),
    argument("--limit", type=how_many, default=20, metavar="N", help="maximum number of results (20)"),
    description="Find datasets in the network by their cards: name, title, place, keywords, description, columns. "
    "Datasets with the highest trust level here come first, then those that peers in most subnets serve; the "
    "publisher's own claims do not count. odfctl describe dataset did:odf:… shows a dataset before you mirror it.",
    example="air quality --license CC-BY-4.0 --since 30d",
)
def _search(session: Session, args: argparse.Namespace) -> None:
    request = wire.SearchRequest(
        words=" ".join(args.words),
        license=args.license,
        column=args.column,
        updated_within=None if args.since is None else round(seconds(args.since)),
        attested=args.attested,
        standing=tuple(args.standing),
        limit=args.limit,
    )
    now = session.clock.now()
    columns: tuple[TableColumn[wire.CardView], ...] = (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("TITLE", lambda row: row.words.title, most=40, optional=True),
        TableColumn("PUBLISHER", lambda row: row.publisher or formatting.NOTHING),
        TableColumn("NODE", lambda row: formatting.node(row.node), most=100, optional=True),
        TableColumn("STANDING", lambda row: row.standing),
        TableColumn("PEERS", lambda row: formatting.count(row.peers), right=True),
        TableColumn("RECORDS", lambda row: formatting.count(row.records), right=True),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
        TableColumn("HERE AS", lambda row: row.local_name or formatting.NOTHING),
        TableColumn("DATASET", lambda row: row.id, most=WHOLE),
    )
    patience = 0.0 if args.wait is None else seconds(args.wait)
    with session.waiting(f"waiting for cards of peers, {formatting.span(patience)} at most"):
        answer = _until_found(session, request, patience)
    session.answer(answer, lambda view: render(columns, view.found))
    found = answer.value
    alike = next((row for row in found.found if row.namesakes), None)
    if alike is not None:
        many = formatting.plural(alike.namesakes, "other dataset")
        session.remark(f"{many} with a name that looks like {alike.name}: compare publisher and id")
    for copy in found.withdrawn:
        said = formatting.withdrawal(copy.withdrawn_at)
        session.remark(f"{copy.name} is here and was {said}: odfctl describe dataset {copy.name}")
    more = f", {found.more} more with --limit" if found.more else ""
    session.remark(f"{len(found.found)} of {formatting.plural(found.cards, 'card')}{more}")
    if not found.cards:
        session.remark(
            "no card is known here: those of published datasets arrive within a minute of joining a network "
            "(--wait 1m waits for it; odfctl network list, odfctl peer list)"
        )


def _until_found(session: Session, request: wire.SearchRequest, patience: float) -> Answer[wire.SearchView]:
    """Repeats a search until something is found, for ``patience`` seconds: cards arrive within a minute of joining."""
    ends = time.monotonic() + patience
    while True:
        answer = session.client.do(calls.search_search(request))
        if answer.value.found or time.monotonic() >= ends:
            return answer
        time.sleep(_AGAIN)
