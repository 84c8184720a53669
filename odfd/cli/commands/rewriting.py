"""``reset``, ``compact``: rewrite the history of a dataset of this node.

With ``--offline-key`` a dry run returns the statement that the roots have to sign; the key signs it on this machine,
and is never sent anywhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from odfd.cli import formatting
from odfd.cli.command import REF, YES, Commands, argument, confirm
from odfd.cli.commands.authority import offline_key
from odfd.cli.kinds import OR_PATTERN, datasets_meant, one_or_several
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import ExitCode, Usage
from odfd.usage import how_many

_EPOCH = (
    " The rewrite begins an epoch, which the dataset's root keys sign, so that mirrors can distinguish it from a "
    "forgery; their policy.rewrite.follow says whether they follow. Datasets that were derived from dropped "
    "blocks have to be derived again."
)


commands = Commands()
_CARE = (
    argument("--dry-run", action="store_true", help="print what would be done, and do nothing"),
    argument("--offline-key", metavar="FILE", help="file with the dataset's key"),
    YES,
)
"""Options of commands that drop history."""


@commands.add(
    "reset",
    REF,
    argument("to", metavar="#N|HASH", help="make an earlier block the head"),
    argument(
        "--reason",
        choices=("reset", "recovery", "fork"),
        default="reset",
        help="reason written in the epoch: the history changes, a lie or a theft is undone, or a fork ends",
    ),
    *_CARE,
    description="Make an earlier block the head and drop later ones. odfctl gc frees their disk." + _EPOCH,
    example="nyc.flights '#7'",
)
def _reset(session: Session, args: argparse.Namespace) -> int:
    return _rewrite(session, args, [args.ref], wire.RewriteRequest(action="reset", to=args.to, reason=args.reason))


@commands.add(
    "compact",
    argument("ref", metavar="REF", help=OR_PATTERN),
    argument("--max-slice-bytes", type=how_many, metavar="B", help="maximum bytes of a merged slice (300000000)"),
    argument("--max-slice-rows", type=how_many, metavar="N", help="maximum records of a merged slice (10000)"),
    argument("--keep-metadata-only", action="store_true", help="drop all records, keep all other blocks"),
    *_CARE,
    description="Merge consecutive slices of a source dataset into larger ones; every record stays as it is. With "
    "--keep-metadata-only all records are dropped; the next pull computes a derived dataset again." + _EPOCH,
    example="nyc.flights --max-slice-rows 1000000",
)
def _compact(session: Session, args: argparse.Namespace) -> int:
    refs = datasets_meant(session, [args.ref])
    if args.keep_metadata_only:
        if args.max_slice_bytes is not None or args.max_slice_rows is not None:
            raise Usage("metadata alone has no slices to be merged", hint="leave out the sizes of slices")
        return _rewrite(session, args, refs, wire.RewriteRequest(action="keep-metadata"))
    request = wire.RewriteRequest(
        action="compact", max_slice_bytes=args.max_slice_bytes, max_slice_rows=args.max_slice_rows
    )
    return _rewrite(session, args, refs, request)


def _rewrite(session: Session, args: argparse.Namespace, refs: Sequence[str], request: wire.RewriteRequest) -> int:
    done = [_rewrite_one(session, args, ref, request) for ref in refs]
    session.answer(one_or_several(done), lambda _: "\n".join(rewrite_text(each.value) for each in done))
    return ExitCode.OK


def _rewrite_one(
    session: Session, args: argparse.Namespace, ref: str, request: wire.RewriteRequest
) -> Answer[wire.RewriteResult]:
    asks = request.action in _GIVES_UP and not args.yes
    if not args.dry_run and (asks or args.offline_key is not None):
        key = offline_key(args.offline_key)
        plan = submit(session, calls.rewriting_rewrite(ref, replace(request, dry_run=True)), wire.RewriteResult).value
        if asks and plan.outcome != "unchanged":
            confirm(_given_up(plan), "nothing was changed")
        if key is not None and plan.draft is not None:
            payload = plan.draft.payload
            request = replace(request, payload=payload, signatures=(key.signature(payload),))
    return submit(session, calls.rewriting_rewrite(ref, replace(request, dry_run=args.dry_run)), wire.RewriteResult)


_GIVES_UP: Final = frozenset({"reset", "keep-metadata"})
"""Actions after which published records are gone."""


def _given_up(plan: wire.RewriteResult) -> str:
    """Returns the question whether to carry out a plan that drops records."""
    count = plan.before - plan.kept
    first = f"block #{plan.kept}" if count == 1 else f"{count:,} blocks from #{plan.kept} on"
    return f"Drop {first} of {plan.ref}, with {'its' if count == 1 else 'their'} records?"


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
