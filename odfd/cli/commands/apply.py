"""``apply``: sends manifests to the daemon, and shows which resources were created, updated or left unchanged.

``declare`` applies the manifest that another command stands for; ``-v`` prints it, so that it can be kept.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from chain.errors import Environment, Invalid, NotFound, Remote
from chain.wording import agree
from odfd import output
from odfd.cli import formatting, kinds
from odfd.cli.command import Commands, argument
from odfd.cli.new_file import open_file
from odfd.cli.progress import apply_manifests
from odfd.cli.session import Session, to_yaml
from odfd.cli.table import TableColumn, clean, render
from odfd.control import wire
from odfd.control.client import Answer
from odfd.errors import ExitCode, Usage

SHOWN: Final = 3
"""Names of new datasets that a remark lists."""
MAX_MANIFEST: Final = 4 * 1024 * 1024
"""Bytes of one file of manifests."""
FETCH_SECONDS: Final = 30.0
"""Seconds that a file of manifests from the web may take, from the request to its last byte."""
_SIGNS: Final = {"created": "+", "updated": "~", "deleted": "-"}
_LOOK: Final = "look at it in a browser; then try again"
_SUFFIXES: Final = (".yaml", ".yml", ".json")


commands = Commands()


@commands.add(
    "apply",
    argument(
        "-f",
        "--file",
        action="append",
        required=True,
        metavar="FILE|DIR|URL|-",
        help="a file, folder or URL with manifests; repeatable",
    ),
    argument("--dry-run", action="store_true", help="print what would change, and change nothing"),
    argument("--keep-going", action="store_true", help="apply all valid manifests, and report the others"),
    argument("--force", action="store_true", help="also change what another resource made, and pin engines not here"),
    argument(
        "--prune", metavar="SELECTOR", help="afterwards delete sets and flows with these labels that no manifest names"
    ),
    description="Create the resources that the manifests describe, and update those that differ.",
    example="-f datasets/ --dry-run",
)
def _apply(session: Session, args: argparse.Namespace) -> int:
    manifests = tuple(text for place in args.file for text in read(place))
    return apply_texts(
        session,
        manifests,
        dry_run=args.dry_run,
        prune=args.prune,
        keep_going=args.keep_going,
        force=args.force,
    )


def apply_texts(
    session: Session,
    manifests: tuple[wire.ManifestText, ...],
    *,
    dry_run: bool = False,
    prune: str | None = None,
    keep_going: bool = False,
    force: bool = False,
) -> int:
    """Applies manifests, and returns what ``show_applied`` does."""
    on_error = "skip" if keep_going else None
    result = apply_manifests(session, manifests, dry_run=dry_run, prune=prune, force=force, on_error=on_error)
    return show_applied(session, result, dry_run=dry_run)


def show_applied(session: Session, result: Answer[wire.ApplyResult], *, dry_run: bool = False) -> int:
    """Shows the result for each manifest. Returns the exit code."""
    session.answer(result, _table)
    made = [item.name for item in result.value.items if (item.kind, item.action) == ("dataset", "created")]
    if made and not dry_run:
        session.remark(roots_text(made, session.again))
    return _report(session, result.value)


def show_changes(session: Session, places: Sequence[str], prune: str | None) -> int:
    """Shows what an apply of manifests would change; changes nothing."""
    manifests = tuple(text for place in places for text in read(place))
    result = apply_manifests(session, manifests, dry_run=True, prune=prune)
    session.answer(result, _changes)
    changed = any(item.action in ("created", "updated", "deleted") for item in result.value.items)
    return max(_report(session, result.value, is_shown=True), ExitCode.NO if changed else ExitCode.OK)


def _changes(result: wire.ApplyResult) -> str:
    """Formats each resource that would change as a line, with one indented line for each changed part."""
    lines: list[str] = []
    for item in result.items:
        if item.action in _SIGNS:
            lines.append(f"{_SIGNS[item.action]} {item.kind} {item.name}")
            lines += [f"    {course_text(item)}"] * (item.course is not None)
            lines += [f"    {change}" for change in item.changes]
    return "\n".join(lines)


def course_text(item: wire.ApplyItem) -> str:
    """Says whether a dataset evolves by a change or is rewritten, and what that means for its rows."""
    return f"{item.course}: {clean(item.course_text, 1000)}"


def _report(session: Session, result: wire.ApplyResult, *, is_shown: bool = False) -> int:
    """Shows courses, unless they are shown already, warnings and faults. Returns the highest of the exit codes."""
    codes = [ExitCode.OK]
    for item in result.items:
        if item.course is not None and not is_shown:
            session.remark(f"{item.name} {course_text(item)}")
        for warning in item.warnings:
            session.remark(f"warning: {item.name}: {warning}")
        if item.fault:
            codes.append(session.failure(item.name, item.fault.fault()))
    return max(codes)


def roots_text(made: Sequence[str], again: str) -> str:
    """Describes where the keys of the new datasets are, and the command that moves them offline."""
    named = ", ".join(made[:SHOWN]) + (f" and {len(made) - SHOWN} more" if len(made) > SHOWN else "")
    lies = agree(len(made), "root key", "root keys")
    return (
        f"the {lies} of {named} {agree(len(made), 'is', 'are')} on this machine, not offline; "
        f"{again} trust authority rotate {made[0]} --offline-key FILE moves it into FILE, to be put away"
    )


def _table(result: wire.ApplyResult) -> str:
    columns: tuple[TableColumn[wire.ApplyItem], ...] = (
        TableColumn("NAME", lambda item: item.name),
        TableColumn("KIND", lambda item: item.kind),
        TableColumn("DONE" if not result.dry_run else "WOULD BE", lambda item: item.action),
        TableColumn("ID", lambda item: formatting.identity(item.id)),
        TableColumn("CHANGES", lambda item: "; ".join(item.changes), most=100),
    )
    return render(columns, result.items)


def read(place: str) -> Iterator[wire.ManifestText]:
    """Yields the texts of manifests with their origins. Raises Usage, NotFound, Invalid, Remote."""
    if place == "-":
        yield _manifest("<stdin>", _read_bounded(sys.stdin.buffer, "<stdin>"), str(Path.cwd()))
    elif "://" in place and not place.startswith(("http://", "https://")):
        raise Usage(
            f"not an address that is fetched: {place}", hint="-f takes http:// and https://, a file, a folder, or -"
        )
    elif place.startswith(("http://", "https://")):
        yield _manifest(place, web_bytes(place, MAX_MANIFEST), "")
    else:
        for path in _files(Path(place)):
            # Relative paths begin at a file; a pipe, like /dev/stdin or <(…), is nowhere.
            base = path.parent.resolve() if path.is_file() else Path.cwd()
            with open_file(str(path)) as file:
                yield _manifest(str(path), _read_bounded(file, str(path)), str(base))


def _files(path: Path) -> list[Path]:
    """Lists the manifests in a folder; anything else is a file by itself. Raises NotFound, Environment."""
    try:
        if not path.exists():
            hint = "-f takes a file, a folder, a URL, or - for standard input"
            raise NotFound(f"there is no file {path}", rule="file-missing", hint=hint)
        if not path.is_dir():
            return [path]
        found = sorted(one for one in path.iterdir() if one.suffix in _SUFFIXES and one.is_file())
    except OSError as error:
        raise Environment(f"cannot read {path}: {error.strerror}", rule="file") from error
    if not found:
        hint = f"files that end in {', '.join(_SUFFIXES)} are read"
        raise NotFound(f"there are no manifests in {path}", rule="manifest-empty", hint=hint)
    return found


def _read_bounded(file: BinaryIO, name: str, most: int = MAX_MANIFEST) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise Invalid(f"larger than {most} bytes", rule="manifest-size", place=name, hint="split it")
    return data


def web_bytes(url: str, most: int) -> bytes:
    """Downloads a file in a thread that is abandoned at the time limit: the library's timeout restarts with each byte.

    ``most``: bytes that it may have. Raises Remote, Invalid.
    """
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
    threading.Thread(target=_fetch, args=(url, most, answers), daemon=True).start()
    try:
        found = answers.get(timeout=FETCH_SECONDS)
    except queue.Empty:
        raise Remote(f"{url} did not come in {FETCH_SECONDS:g} s", rule="web-slow", hint=_LOOK) from None
    if isinstance(found, Exception):
        raise found
    return found


def _reason(error: Exception) -> object:
    """Returns the cause inside of a ``URLError``, whose own text is a repr; of others the system's text, if any."""
    inner = getattr(error, "reason", error) if type(error).__name__ == "URLError" else error
    return getattr(inner, "strerror", None) or inner


def _fetch(url: str, most: int, answers: queue.SimpleQueue[bytes | Exception]) -> None:
    import http.client
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as response:  # noqa: S310  http or https, checked
            answers.put(_read_bounded(response, url, most))
    except (OSError, http.client.HTTPException) as error:
        answers.put(Remote(f"cannot fetch {url}: {_reason(error)}", rule="web-failed", hint=_LOOK))
    except Exception as error:  # noqa: BLE001  the waiting thread raises it
        answers.put(error)


def _manifest(source: str, data: bytes, base: str) -> wire.ManifestText:
    try:
        return wire.ManifestText(source=source, text=data.decode(), base=base)
    except UnicodeDecodeError as error:
        raise Invalid(
            f"not UTF-8 text (byte {error.start})", rule="manifest-encoding", place=source, hint=_encoding_hint(data)
        ) from error


def _encoding_hint(data: bytes) -> str:
    if data.startswith(b"\x1f\x8b"):
        return "this is a gzip file: gunzip it first"
    return "manifests are UTF-8: convert it, for example with iconv"


_WRITTEN: Final = ("labels", "annotations")


def declare(session: Session, type_: str, name: str, spec: dict[str, Any], *, key: str | None = None) -> None:
    """Applies one manifest, and prints its warnings. Raises the fault that prevents it.

    ``key``: field of the spec that identifies resources of this type instead of the name: an existing one keeps its
    name. Existing labels and annotations are kept too.
    """
    standing = kinds.list_resources(session.client, kinds.find(type_)).value
    same = [each for each in standing if _is_same(each, name, spec, key)]
    headers: dict[str, Any] = {"name": same[0].name if same else name}
    headers |= {part: same[0].headers[part] for part in _WRITTEN if same and same[0].headers.get(part)}
    manifest = {"$schema": type_, "headers": headers, "spec": spec}
    (item, *_) = apply_manifests(session, [manifest_text(session, type_, manifest)]).value.items
    for warning in item.warnings:
        session.remark(f"warning: {item.name}: {warning}")
    if item.fault is not None:
        raise item.fault.fault()


def manifest_text(session: Session, source: str, manifest: dict[str, Any]) -> wire.ManifestText:
    """Returns the manifest of a command for sending; with ``-v`` also prints it."""
    if session.verbose:
        output.remark(to_yaml(manifest).rstrip())
    return wire.ManifestText(source=source, text=json.dumps(manifest))


def _is_same(each: wire.ResourceManifest, name: str, spec: dict[str, Any], key: str | None) -> bool:
    if key is None:
        return each.name.casefold() == name.casefold()
    return each.spec is not None and each.spec.get(key) == spec[key]
