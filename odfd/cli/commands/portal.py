"""``portal``: opens a portal to an auditor, and audits portals that others opened."""

from __future__ import annotations

import argparse
from pathlib import Path

from chain.errors import Invalid
from odfd import output
from odfd.cli import formatting
from odfd.cli.command import REF, Commands, argument
from odfd.cli.new_file import NewFile
from odfd.cli.progress import submit
from odfd.cli.session import Session
from odfd.cli.table import WHOLE, clean
from odfd.control import calls, wire
from odfd.errors import ExitCode

commands = Commands()
_MOST = 4096
portal = commands.group(
    "portal",
    description="A portal publishes rows of a private dataset in another one, by a rule. The node checks every block "
    "against the rule, and so can every node that has the rows (odfctl verify). Only an auditor can compare them with "
    "the private dataset: a node with which its owner shared that dataset and an opening.",
    example="open wages --out wages.opening",
)


@portal.add(
    "open",
    REF,
    argument("--out", metavar="FILE", help="a new file for it, which its owner alone reads; else it is printed"),
    help="write what an auditor needs beside the private dataset",
    description="Write the opening of a portal: the id of its private dataset and the salt of its hashes. Its holder "
    "can find out which dataset the rows come from. Share that dataset with the auditor too: odfctl share.",
    example="wages --out wages.opening",
)
def _open(session: Session, args: argparse.Namespace) -> None:
    file = None if args.out is None else NewFile(args.out, is_private=True)
    opening = session.client.do(calls.portals_open(args.ref))
    if file is None:
        session.answer(opening, lambda found: found.text.rstrip())
        return
    file.write(opening.value.text)
    output.say(f"{clean(args.out, WHOLE)} opens {opening.value.name} to holders of {opening.value.input} too")


@portal.add(
    "audit",
    REF,
    argument("opening", metavar="FILE", help="the opening that the portal's owner wrote"),
    help="make the rows again from the private dataset, and sign the result",
    description="Make every block of a portal again from its private dataset, which must be here, and compare the "
    "rows. The results are signed as observations of the portal's blocks: same-rows or differs, and nothing else. "
    "Ends with 1 if a block differs.",
    example="wages wages.opening",
)
def _audit(session: Session, args: argparse.Namespace) -> int:
    try:
        with Path(args.opening).open("rb") as file:
            text = file.read(_MOST + 1).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not an opening"
        raise Invalid(f"cannot read {clean(args.opening, WHOLE)}: {reason}", rule="portal-opening") from error
    request = wire.AuditRequest(opening=text)
    done = submit(session, calls.portals_audit(args.ref, request), wire.AuditResult)
    session.answer(done, _text)
    return ExitCode.OK if done.value.same == done.value.blocks else ExitCode.NO


def _text(found: wire.AuditResult) -> str:
    count, name = formatting.plural(found.blocks, "block"), clean(found.ref, 100)
    if found.same == found.blocks:
        lines = [f"yes: {count} of {name} come from the private dataset by the rule"]
    else:
        lines = [f"no: {found.blocks - found.same} of {count} of {name} do not come from the private dataset"]
    lines += [f"  #{difference.block}  {clean(difference.why, 200)}" for difference in found.differences]
    lines.append(f"  {formatting.plural(found.signed, 'observation')} signed")
    return "\n".join(lines)
