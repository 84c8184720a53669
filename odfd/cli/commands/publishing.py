"""``publish``, ``unpublish``, ``share``, ``ipfs``: set who may read datasets, and publish them on IPFS."""

from __future__ import annotations

import argparse

from chain.errors import Refused
from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.commands.authority import offline_key
from odfd.cli.kinds import OR_PATTERN, datasets_meant
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, TableColumn, render
from odfd.control import calls, wire
from odfd.errors import Usage

commands = Commands()
_ON_CARD = ("sample", "title", "place", "area", "frequency")
_DATASETS = (
    argument("refs", nargs="*", metavar="NAME", help=OR_PATTERN),
    argument("--all", action="store_true", help="all datasets of this node"),
)


@commands.add(
    "unpublish",
    *_DATASETS,
    description=(
        "Stop announcing and serving datasets: they are private again, also after a restart. Others keep their copies."
    ),
    example="nyc.flights",
)
@commands.add(
    "publish",
    *_DATASETS,
    argument("--to", nargs="+", action="extend", default=[], metavar="NETWORK", help="only in these networks"),
    argument(
        "--sample",
        type=int,
        metavar="N",
        help="show the N newest rows on the card, at most 20, to every node that may find it; 0: none (default)",
    ),
    argument("--title", metavar="TEXT", help='a title for the card, beside the name; "": none'),
    argument("--place", metavar="TEXT", help='the place that the rows are about, as text; "": none'),
    argument(
        "--area",
        metavar="W,S,E,N",
        help='the area that the rows are about, in degrees, like 15.35,47,15.54,47.14; "": none. '
        "Of one that begins with a minus: --area=-9.23,38.69,-9.09,38.80",
    ),
    argument(
        "--frequency",
        metavar="WORD",
        help="how often rows are added: continuous, hourly, daily, weekly, monthly, quarterly, annual, irregular, "
        'never; "": not said',
    ),
    description=(
        "Announce datasets and serve them: to peers of the network, and over HTTP and IPFS if the settings "
        "say so. An unpublished dataset is invisible to others. --all publishes the datasets that exist now; "
        "the setting policy.publish.datasets also publishes future ones. With --to, only members of these "
        "networks see them: not other networks, and no client over HTTP, IPFS or repositories. A "
        "title, a place, an area "
        "and a frequency are shown on the card of one dataset, until you change them or unpublish it."
    ),
    example="nyc.flights",
)
def _change(session: Session, args: argparse.Namespace) -> None:
    word = args.command
    if bool(args.refs) == args.all:
        raise Usage(f"{word} names datasets, or --all", hint=f"odfctl {word} NAME")
    request = wire.VisibilityRequest(
        refs=datasets_meant(session, args.refs),
        all=args.all,
        to=tuple(getattr(args, "to", ())),
        **{name: getattr(args, name, None) for name in _ON_CARD},
    )
    rows = session.client.do((calls.visibility_publish if word == "publish" else calls.visibility_unpublish)(request))
    session.answer(rows, lambda rows: render(_COLUMNS, rows))
    for row in rows.value:
        for note in row.notes:
            session.remark(f"{row.name}: {note}")
    if not rows.value:
        session.remark("no datasets yet")


@commands.add(
    "share",
    argument("ref", metavar="NAME"),
    argument("--with", dest="peers", nargs="+", default=(), metavar="PEER", help="a peer that may read it"),
    argument("--revoke", nargs="+", default=(), metavar="PEER", help="a peer that may no longer read it"),
    description=(
        "Share a private dataset with some peers; for all other peers it does not exist. A peer is named by its id "
        "(12D3KooW…, which its odfctl status shows), its key (did:key:…), or the beginning of an id in odfctl "
        "peer list. It fetches the dataset by: odfctl mirror add DID --from THIS-PEER. A revoked peer keeps "
        "its copy. Without options: list with whom the dataset is shared."
    ),
    example="nyc.flights --with 12D3KooWGRUVh7PNDWUWwSgkVCHcBrrS2wwnVVJyTzsjUx8V8wjp",
)
def _share(session: Session, args: argparse.Namespace) -> None:
    request = wire.ShareRequest(ref=args.ref, peers=tuple(args.peers), revoke=tuple(args.revoke))
    session.answer(session.client.do(calls.visibility_share(request)), _share_text)


def _share_text(row: wire.VisibilityView) -> str:
    if row.published:
        return f"{row.name} is published: every node may copy it"
    if not row.shared_with:
        return f"{row.name} is private: shared with no peer"
    return "\n".join([f"{row.name}, {row.id}, is shared with", *(f"  {peer}" for peer in row.shared_with)])


def _outcome_text(row: wire.VisibilityView) -> str:
    if not row.published:
        return "private" if row.changed else "unchanged"
    where = "" if row.networks is None else f" to {', '.join(row.networks)}"
    rows = f", with {formatting.plural(row.sample, 'row')} on its card at most" if row.sample else ""
    seen = ", but its head is not signed" if row.unsigned else ""
    return f"published{where}{rows}{seen}" if row.changed or seen else "unchanged"


_COLUMNS: tuple[TableColumn[wire.VisibilityView], ...] = (
    TableColumn("NAME", lambda row: row.name),
    TableColumn("DONE", lambda row: _outcome_text(row), most=90),
    TableColumn("ID", lambda row: row.id, most=90),
)


ipfs = commands.group(
    "ipfs",
    description=(
        "A dataset on IPFS is a folder in the ODF layout, under an IPNS name made from the dataset's key. The "
        "node writes it through the Kubo in the setting [ipfs] api; nodes that mirror it from there verify "
        "everything."
    ),
    example="publish nyc.flights",
)


@ipfs.add(
    "publish",
    REF,
    argument("--once", action="store_true", help="publish it once, without updates"),
    argument("--offline-key", metavar="FILE", help="file with the dataset's key"),
    help="publish a dataset on IPFS and keep it up to date",
    description=(
        "Publish a dataset on IPFS: new content is added, and its name points to it. The node then publishes "
        "each change, and renews the record before it expires. With --offline-key, for a dataset whose key is "
        "kept elsewhere, the dataset's own name points to a name of this node; the key is sent nowhere."
    ),
    example="nyc.flights",
)
def _publish(session: Session, args: argparse.Namespace) -> None:
    request = wire.PublishRequest(ref=args.ref, once=args.once)
    done = submit(session, calls.publications_publish(request), wire.PublicationView)
    key = offline_key(args.offline_key)
    if key is not None:
        if done.value.name is None:
            raise Refused("this node does not write that dataset", rule="ipns-delegation", hint="its owner's node does")
        delegation = key.delegation(done.value.name, session.clock.now())
        request = wire.PublishRequest(ref=args.ref, once=args.once, delegation=delegation)
        done = submit(session, calls.publications_publish(request), wire.PublicationView)
    session.answer(done, publication_text)


def publication_text(done: wire.PublicationView) -> str:
    lines = [f"{done.ref} is on IPFS: {formatting.plural(done.blocks, 'block')}, {done.root}"]
    if done.name is None:
        lines.append("  None of its keys is here, so that no name points to it")
    elif done.name == done.home:
        lines.append(f"  Its name ipns://{done.name} points there")
    else:
        lines.append(f"  ipns://{done.name}, of this node, points there, and ipns://{done.home} to that name")
    added = formatting.plural(done.added_objects, "object")
    lines.append(
        f"  Added: {formatting.plural(done.added_blocks, 'block')}, {added} ({formatting.size(done.added_bytes)})"
    )
    return "\n".join(lines)


def _publications(session: Session, rows: list[wire.PublicationView]) -> str:
    now = session.clock.now()
    columns: tuple[TableColumn[wire.PublicationView], ...] = (
        TableColumn("NAME", lambda row: row.ref),
        TableColumn("BLOCKS", lambda row: f"{row.blocks:,}", right=True),
        TableColumn("ROOT", lambda row: row.root, most=WHOLE),
        TableColumn("IPNS", lambda row: row.name or "-", most=WHOLE),
        TableColumn("RENEWED", lambda row: formatting.ago(row.at, now)),
        TableColumn("STATE", lambda row: row.message or ("kept" if row.standing else "once"), most=WHOLE),
    )
    return render(columns, rows)


@ipfs.add("list", help="list the datasets of this node on IPFS")
def _list(session: Session, _: argparse.Namespace) -> None:
    rows = session.client.do(calls.publications_list())
    session.answer(rows, lambda rows: _publications(session, rows))
    if not rows.value:
        session.remark("nothing there yet: odfctl ipfs publish REF")


@ipfs.add(
    "withdraw",
    REF,
    help="remove a dataset from this node's Kubo",
    description="Remove a dataset from this node's Kubo; Kubo's collector frees the disk. Copies of other nodes stay.",
    example="nyc.flights",
)
def _withdraw(session: Session, args: argparse.Namespace) -> None:
    gone = session.client.do(calls.publications_withdraw(args.ref))
    session.answer(
        gone, lambda row: f"{row.ref} was removed from this node's Kubo; its name resolves until {row.expires}"
    )
