"""``reset``, ``compact``: rewrite the history of a dataset of this node. ``gc``: frees disk space.

With ``--offline-key`` the dry run says what the roots have to sign; the key signs it here, and is never sent anywhere.
"""

from __future__ import annotations

import argparse
from typing import Final

from msgspec.structs import replace

from odfd.cli import formatting
from odfd.cli.command import REF, YES, Commands, argument, confirm
from odfd.cli.commands.authority import offline_key
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import wire
from odfd.control.client import part
from odfd.errors import ExitCode, Usage

_EPOCH = (
    "\nAn epoch is opened for it, signed by the dataset's roots, so that mirrors can tell it from a lie; whether they"
    "\nfollow is their policy.rewrite.follow. What is derived from blocks that go has to be derived anew."
)


commands = Commands()
_CARE = (
    argument("--dry-run", action="store_true", help="only say what would be done"),
    argument("--offline-key", metavar="FILE", help="file that holds the dataset's key"),
    YES,
)
"""Options of what gives up history."""


@commands.add(
    "reset",
    REF,
    argument("to", metavar="#N|HASH", help="the block that becomes the head"),
    argument(
        "--reason",
        choices=("reset", "recovery", "fork"),
        default="reset",
        help="what the epoch says: history is to be another, or a lie or a theft is undone, or two histories end",
    ),
    *_CARE,
    description="Make an earlier block the head; later ones are given up. Their disk is freed by gc." + _EPOCH,
    example="nyc.flights '#7'",
)
def _reset(session: Session, args: argparse.Namespace) -> int:
    return _rewrite(session, args, wire.RewriteRequest(action="reset", to=args.to, reason=args.reason))


@commands.add(
    "compact",
    REF,
    argument("--max-slice-bytes", type=int, metavar="B", help="of those merged into one (300000000)"),
    argument("--max-slice-rows", type=int, metavar="N", help="of one merged slice (10000)"),
    argument("--keep-metadata-only", action="store_true", help="drop every record, keep all other blocks"),
    *_CARE,
    description="Merge slices of a root dataset that follow each other into larger ones; every record stays as it is.\n"
    "With --keep-metadata-only all records go; a derived dataset is derived anew by the next pull." + _EPOCH,
    example="nyc.flights --max-slice-rows 1000000",
)
def _compact(session: Session, args: argparse.Namespace) -> int:
    if args.keep_metadata_only:
        if args.max_slice_bytes is not None or args.max_slice_rows is not None:
            raise Usage("metadata alone has no slices to be merged", hint="leave out the sizes of slices")
        return _rewrite(session, args, wire.RewriteRequest(action="keep-metadata"))
    request = wire.RewriteRequest(
        action="compact", max_slice_bytes=args.max_slice_bytes, max_slice_rows=args.max_slice_rows
    )
    return _rewrite(session, args, request)


def _rewrite(session: Session, args: argparse.Namespace, request: wire.RewriteRequest) -> int:
    path = f"/datasets/{part(args.ref)}/rewrite"
    asks = request.action in _GIVES_UP and not args.yes
    if not args.dry_run and (asks or args.offline_key is not None):
        key = offline_key(args.offline_key)
        plan = submit(session, path, replace(request, dry_run=True), wire.RewriteResult).value
        if asks and plan.outcome != "unchanged":
            confirm(_given_up(plan), "nothing was changed")
        if key is not None and plan.draft is not None:
            payload = plan.draft.payload
            request = replace(request, payload=payload, signatures=(key.signature(payload),))
    done = submit(session, path, replace(request, dry_run=args.dry_run), wire.RewriteResult)
    session.answer(done, rewrite_text)
    return ExitCode.OK


_GIVES_UP: Final = frozenset({"reset", "keep-metadata"})
"""Actions after which published records are gone."""


def _given_up(plan: wire.RewriteResult) -> str:
    """The question for a plan of such an action."""
    count = plan.before - plan.kept
    first = f"block #{plan.kept}" if count == 1 else f"{count:,} blocks from #{plan.kept} on"
    return f"Give up {first} of {plan.ref}, with {'its' if count == 1 else 'their'} records?"


def rewrite_text(done: wire.RewriteResult) -> str:
    if done.outcome == "unchanged":
        return f"{done.ref} stays as it is: {done.message}"
    is_plan = done.outcome == "planned"
    changed = f"{formatting.plural(done.before, 'block')} {'would become' if is_plan else 'became'} {done.blocks:,}"
    lines = [f"{done.ref}: {changed}, the first {done.kept:,} as they were"]
    if done.merged:
        lines.append(f"  {done.merged:,} blocks of data {'would be' if is_plan else 'are'} merged into {done.into:,}")
    if is_plan:
        lines.append(f"  Epoch {done.epoch} would be opened for it; nothing was changed")
    else:
        lines.append(f"  Epoch {done.epoch}, head #{done.blocks - 1} {formatting.digest(done.head)}")
    return "\n".join(lines)


_OBJECTS: tuple[TableColumn[wire.CollectedObject], ...] = (
    TableColumn("OBJECT", lambda item: item.name),
    TableColumn("SIZE", lambda item: formatting.size(item.size), right=True),
)


@commands.add(
    "gc",
    argument("--dry-run", action="store_true", help="only say what would be freed"),
    description=(
        "Free the disk of objects that no block names any more, as those of a compacted dataset. What was read\n"
        "since the last collection waits for the next one, for a reader may not be done with it. The trust\n"
        "ledger lets go of statements that were superseded long ago. The daemon collects by itself every\n"
        "node.collect-hours."
    ),
    example="--dry-run",
)
def _gc(session: Session, args: argparse.Namespace) -> None:
    request = wire.CollectRequest(dry_run=args.dry_run)
    session.answer(submit(session, "/collect", request, wire.CollectResult), collected_text)


def collected_text(done: wire.CollectResult) -> str:
    verb = "would be freed" if done.dry_run else "freed"
    lines = [f"{formatting.plural(done.objects, 'object')}, {formatting.size(done.bytes)}, {verb}"]
    if done.waiting:
        waiting = f"{formatting.plural(done.waiting, 'object')}, {formatting.size(done.waiting_bytes)}"
        lines.append(f"  {waiting}, more that nobody names: read or written a moment ago, they wait for the next gc")
    if done.statements:
        dropped = formatting.plural(done.statements, "superseded statement")
        lines.append(f"  {dropped} of the trust ledger {'would go' if done.dry_run else 'gone'} too")
    if done.folds:
        dropped = f"{formatting.plural(done.folds, 'fold')}, {formatting.size(done.fold_bytes)}"
        lines.append(f"  {dropped}, of histories that are no more {'would go' if done.dry_run else 'gone'} too")
    if done.listed:
        lines += ["", render(_OBJECTS, done.listed)]
    if done.unlisted:
        lines.append(f"and {done.unlisted:,} more")
    return "\n".join(lines)
