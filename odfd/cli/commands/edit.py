"""``edit``: opens a resource in an editor, and applies the result."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from chain.errors import Fault, Invalid
from odfd.cli import kinds
from odfd.cli.command import Commands, argument
from odfd.cli.commands.apply import show_applied
from odfd.cli.commands.resources import manifest_text, one
from odfd.cli.progress import apply_manifests
from odfd.cli.session import Session
from odfd.control import wire
from odfd.errors import ExitCode, Usage

_WRONG = "# odfctl: "
_TRIES = 20


commands = Commands()


@commands.add(
    "edit",
    argument("kind", metavar="KIND"),
    argument("name", metavar="NAME"),
    description="Open the manifest of a resource in $VISUAL or $EDITOR, and apply the result. Mistakes are written at "
    "the top of the file, which is opened again; saving it unchanged ends the command.",
    example="dataset nyc.flights",
)
def _edit(session: Session, args: argparse.Namespace) -> int:
    kind = kinds.find(args.kind)
    if kind not in kinds.DECLARED:
        known = ", ".join(each.name for each in kinds.DECLARED)
        raise Usage(f"{kind.plural} have no manifests", hint=f"these have: {known}")
    before = one(session, kind, args.name).value
    text = manifest_text(session, kind, args.name)
    wrong, tries = "", 0
    told: Invalid | None = None
    while True:
        edited = _edit_text(wrong + text)
        if told is not None and edited == wrong + text:
            raise told
        if told is None and edited == text:
            session.remark("nothing was changed")
            return ExitCode.OK
        text = "".join(line for line in edited.splitlines(keepends=True) if not line.startswith(_WRONG))
        try:
            manifest = wire.ManifestText(source=f"{kind.name} {args.name}", text=text, base="")
            _check_same(session, manifest, before.name)
            return show_applied(session, apply_manifests(session, (manifest,), generation=before.generation))
        except Invalid as fault:
            tries, told = tries + 1, fault
            if tries == _TRIES:
                raise  # an editor without a user would repeat this for ever
            wrong = "".join(f"{_WRONG}{line}\n" for line in _fault_text(fault).splitlines())


def _check_same(session: Session, manifest: wire.ManifestText, name: str) -> None:
    """Raises Invalid for another name, under which another resource would be made."""
    planned = apply_manifests(session, (manifest,), dry_run=True).value
    made = [each.name for each in planned.items if each.action == "created"]
    if made:
        hint = f"keep {name}, and rename it by odfctl rename or by an apply with its id; or apply {made[0]} as another"
        raise Invalid(f"the name became {made[0]}: an edit is of one resource", rule="edit-name", hint=hint)


def _fault_text(fault: Fault) -> str:
    return f"{fault}\n{fault.hint}" if fault.hint else str(fault)


def _edit_text(text: str) -> str:
    """Opens the text in the user's editor and returns the result. Raises Usage if there is no editor, or it fails."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not command:
        raise Usage("no editor is named", hint="set EDITOR, like EDITOR=vi")
    with tempfile.TemporaryDirectory(prefix="odfctl-") as folder:
        path = Path(folder) / "manifest.yaml"
        path.touch(mode=0o600)
        path.write_text(text)
        try:
            done = subprocess.run([*shlex.split(command), str(path)], check=False)
        except OSError as error:
            raise Usage(f"cannot run {command!r}: {error.strerror}", hint="set EDITOR") from error
        if done.returncode:
            raise Usage(f"{command!r} ended with {done.returncode}", hint="nothing was changed")
        return path.read_text()
