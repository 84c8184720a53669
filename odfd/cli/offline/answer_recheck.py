"""``trust recheck`` of a proven answer: repeats the query on the same blocks, of folders or a daemon, and compares."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from odfd.cli import formatting
from odfd.cli.offline import files
from odfd.cli.session import Session
from odfd.cli.table import clean
from odfd.control import wire
from odfd.errors import Unreachable

if TYPE_CHECKING:
    import pyarrow as pa

    from chain.ids import KeyDid
    from chain.statements.answer import AnswerStatement

MAX_FILE: Final = 16 << 20
_PlainPath: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")
]
"""A file of a folder, or of a folder in it."""


class ProvenAnswer(msgspec.Struct, frozen=True):
    """A proven answer: its signers and statement, and its rows if they are in the same file."""

    predicate: AnswerStatement
    signers: tuple[KeyDid, ...]
    rows: pa.Table | None
    files: int = 0
    """Number of files beside it that hold the rows."""


class Found(msgspec.Struct, frozen=True):
    """The answer to the same query on this machine."""

    predicate: AnswerStatement
    rows: pa.Table | None


def read(name: str) -> ProvenAnswer | None:
    """Reads a proven answer; ``None`` for a file of another kind. Raises Invalid for an invalid signature."""
    from chain.data.logical_hash import logical_hash
    from chain.statements import answer

    try:
        document = json.loads(files.read_limited(name, MAX_FILE, "answer"))
    except ValueError:
        return None
    if not isinstance(document, dict) or "statement" not in document:
        return None
    predicate, signers = answer.unseal(json.dumps(document["statement"]).encode())
    rows = _rows(str(document.get("rows", "")), name)
    if rows is not None and str(logical_hash(rows)) != predicate.logical_hash:
        raise Invalid(
            f"the rows in {name} are not those that were signed", rule="query-prove", hint="ask for the file again"
        )
    named = document.get("files", [])
    if "files" in document:
        _check_files(Path(name).parent, named, predicate)
    return ProvenAnswer(predicate, signers, rows, len(named))


def run(session: Session, proven: ProvenAnswer, folders: Sequence[str]) -> dict[str, Any]:
    """Rechecks an answer, and returns the result as ``trust recheck`` shows it."""
    request = wire.QueryRequest(
        sql=proven.predicate.query,
        pins=tuple(
            wire.Pin(name=pin.name, id=pin.id, block=pin.block, sequence_number=pin.sequence_number, at=pin.at)
            for pin in proven.predicate.pins
        ),
        by_pins=bool(proven.predicate.pins),
        prove=True,
    )
    try:
        if folders:
            from odfd.cli.offline.folder_queries import ask_folders  # a node is asked without

            with tempfile.TemporaryDirectory(prefix="odfd-recheck-") as place:
                found = _unseal(*ask_folders(request, folders, Path(place)))
        else:
            found = _unseal(*_ask(session, request))
    except (NotFound, Refused, Environment, Unreachable, Invalid) as fault:
        if isinstance(fault, Unreachable):
            fault.hint = "odfctl trust recheck FILE --from DIR needs no daemon"
        return _view(proven, "unable", _why(fault))
    return _compare(proven, found)


def _ask(session: Session, request: wire.QueryRequest) -> tuple[Any, pa.Table]:
    """Returns the daemon's own statement about its answer, and the rows."""
    import pyarrow as pa

    from odfd.cli.sql.query import query_batches

    with query_batches(session.client, request) as answered:
        rows = pa.Table.from_batches(answered.batches(), answered.schema)
        return answered.proof, rows


def _unseal(proof: Any, rows: pa.Table) -> Found:
    from chain.statements import answer

    predicate, _ = answer.unseal(json.dumps(proof).encode())
    return Found(predicate, rows)


def _compare(proven: ProvenAnswer, found: Found) -> dict[str, Any]:
    if found.predicate.logical_hash == proven.predicate.logical_hash:
        return _view(proven, "confirmed", "")
    if found.predicate.engine != proven.predicate.engine:
        return _view(
            proven,
            "unable",
            f"here is {found.predicate.engine}, and {proven.predicate.engine} answered: they may differ",
        )
    if found.predicate.columns != proven.predicate.columns:
        return _view(proven, "refuted", "its columns are others")
    if proven.rows is None:
        return _view(proven, "refuted", "which row differs first is not known: the file does not carry its rows")
    return _view(proven, "refuted", "") | _difference(proven.rows, found.rows)


def _difference(signed: pa.Table, found: pa.Table | None) -> dict[str, Any]:
    """Returns the first row that differs, in both versions."""
    from chain.data.json_values import plain_rows

    assert found is not None
    ours = plain_rows(found.slice(0, signed.num_rows + 1))
    theirs = plain_rows(signed)
    for number in range(max(len(ours), len(theirs))):
        here = ours[number] if number < len(ours) else None
        there = theirs[number] if number < len(theirs) else None
        if json.dumps(here) != json.dumps(there):
            return {"row": number, "said": there, "found": here}
    return {}


def _view(proven: ProvenAnswer, result: str, reason: str) -> dict[str, Any]:
    predicate = proven.predicate
    return {
        "result": result,
        "kind": "query",
        "signedBy": [str(key) for key in proven.signers],
        "signedAt": predicate.time,
        "query": predicate.query,
        "engine": predicate.engine,
        "pins": [msgspec.to_builtins(pin) for pin in predicate.pins],
        "standing": predicate.standing,
        "rows": predicate.rows,
        "files": proven.files,
        "logicalHash": predicate.logical_hash,
        "reason": reason,
    }


def text(view: dict[str, Any]) -> str:
    """Formats the result for people."""
    who = ", ".join(formatting.identity(key) for key in view["signedBy"])
    lines = [
        f"{view['result']}   {formatting.plural(view['rows'], 'row')} of an answer, signed {view['signedAt']} by {who}"
    ]
    lines += _query(view["query"])
    lines += [f"  {_SAYING[view['result']]}"]
    if view["files"]:
        lines.append(f"  The rows are those of {formatting.plural(view['files'], 'file')} beside the statement.")
    if view["reason"]:
        lines.append(f"  {clean(view['reason'], 500)}")
    if "row" in view:
        lines.append(f"  row {view['row']}: said {_row(view['said'])}, found {_row(view['found'])}")
    lines += [
        f"  read {clean(pin['name'], 80)} to block #{pin['sequenceNumber']} {formatting.digest(pin['block'])}"
        for pin in view["pins"]
    ]
    return "\n".join(lines)


_SAYING: Final = {
    "confirmed": "The same rows come of the same blocks here.",
    "refuted": "Other rows come of the same blocks here.",
    "unable": "This machine cannot decide.",
}


def _query(query: str) -> Iterable[str]:
    return (f"    {clean(line, 200)}" for line in query.strip().splitlines()[:8])


def _row(row: Any) -> str:
    return "no such row" if row is None else clean(json.dumps(row, ensure_ascii=False), 200)


def _why(fault: Fault) -> str:
    return f"{fault.message}  ({fault.hint})" if fault.hint else fault.message


def _check_files(folder: Path, named: Any, predicate: AnswerStatement) -> None:
    """Checks that the files beside a statement hold the rows that were signed, and that no others lie there.

    Raises Invalid for other rows, and for what is no list of files within the folder; NotFound for a missing one.
    """
    from chain.data.logical_hash import LogicalHasher
    from chain.data.parquet import open_slice

    try:
        paths = [folder / each for each in msgspec.convert([each["path"] for each in named], list[_PlainPath])]
    except (msgspec.ValidationError, TypeError, KeyError) as error:
        raise Invalid("the files beside the statement are not named within its folder", rule="query-prove") from error
    others = {each for path in paths for each in path.parent.glob("*.parquet")} - {*paths}
    if others or not paths:
        raise Invalid(
            f"{min(others).relative_to(folder)} is none of the files that were signed"
            if others
            else "no file is named",
            rule="query-prove",
            hint="export to a new folder, or remove the file",
        )
    hasher: LogicalHasher | None = None
    for path in paths:
        with open_slice(path) as file:
            hasher = hasher or LogicalHasher(file.schema)
            for batch in file.batches():
                hasher.update(batch)
    assert hasher is not None
    if str(hasher.finish()) != predicate.logical_hash:
        raise Invalid(
            "the rows in the files are not those that were signed", rule="query-prove", hint="fetch the files again"
        )


def _rows(carried: str, name: str) -> pa.Table | None:
    import pyarrow as pa

    if not carried:
        return None
    try:
        table = pa.ipc.open_stream(base64.b64decode(carried, validate=True)).read_all()
        table.validate(full=True)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise Invalid(f"the rows in {name} cannot be read: {error}", rule="query-prove") from error
    return table
