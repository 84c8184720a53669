"""``edit``, ``label``, ``annotate``: change a resource in an editor, and what it is selected and described by."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from chain.errors import Fault, Invalid
from odfd.cli import kinds, resource_tables
from odfd.cli.command import Commands, argument
from odfd.cli.commands.apply import show_applied
from odfd.cli.commands.resources import manifest_text, one
from odfd.cli.kinds import BY_LABELS, list_labelled, meant_by, names_of, one_or_several
from odfd.cli.progress import apply_manifests
from odfd.cli.session import Session
from odfd.control import calls, wire
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
    made = [item.name for item in planned.items if item.action == "created"]
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


_ENTRIES = (
    argument("kind", metavar="KIND"),
    argument("name", metavar="NAME", help="or a pattern: %% for any text, _ for a character; none with -l"),
    argument("entries", nargs="*", metavar="KEY=VALUE|KEY-"),
    BY_LABELS,
)
_VALUE = " A value is text, or JSON such as 3, true or [1, 2]."


@commands.add(
    "label",
    *_ENTRIES,
    description="Set labels, by which odfctl get -l selects. KEY- takes one away." + _VALUE,
    example="dataset nyc.flights env=prod old-",
)
def _label(session: Session, args: argparse.Namespace) -> None:
    _set(session, args, "labels")


@commands.add(
    "annotate",
    *_ENTRIES,
    description="Set annotations; selectors ignore them. KEY- removes one." + _VALUE,
    example="dataset nyc.flights env=prod old-",
)
def _annotate(session: Session, args: argparse.Namespace) -> None:
    _set(session, args, "annotations")


def _set(session: Session, args: argparse.Namespace, which: str) -> None:
    kind = kinds.find(args.kind)
    if kind not in kinds.DECLARED:
        known = ", ".join(each.name for each in kinds.DECLARED)
        raise Usage(f"{kind.plural} have no {which}", hint=f"these have: {known}")
    command = "label" if which == "labels" else "annotate"
    entries = args.entries if args.labels is None else [args.name, *args.entries]
    if not entries:
        raise Usage("the following arguments are required: KEY=VALUE|KEY-", hint=f"see odfctl {command} --help")
    values = dict(_entry(entry) for entry in entries)
    request = wire.LabelRequest(labels=values) if which == "labels" else wire.LabelRequest(annotations=values)
    if args.labels is None:
        names = meant_by(session, kind, [args.name]) or []
    else:
        names = names_of(kind, list_labelled(session, kind, args.labels).value)
    assert kind.registration is not None
    done = [session.client.do(calls.resources_label(kind.registration, name, request)) for name in names]
    if not done:
        session.remark(f"no {kind.plural} are so; nothing was changed")
    text = "\n".join(
        f"{each.value.name}  {resource_tables.labels_text(each.value.headers.get(which, {}))}" for each in done
    )
    if done:
        session.answer(one_or_several(done), lambda _: text)


def _entry(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals and text.endswith("-"):
        return text[:-1], None
    if not equals or not key:
        raise Usage(f"not KEY=VALUE or KEY-: {text[:60]!r}", hint="like env=prod, or env- to take it away")
    try:
        found = json.loads(value)
    except ValueError:
        return key, value
    return key, value if found is None else found
