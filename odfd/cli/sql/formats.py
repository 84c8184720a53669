"""Writes an answer as it arrives, for people (table, vertical, markdown, by their pager) and for programs."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from chain.errors import Invalid
from chain.repeats import repeated
from odfd import output
from odfd.cli import formatting
from odfd.cli.sql.query import Answered, Printed, Question, Shown, query_batches, query_lines, query_values, with_fields
from odfd.cli.table import TableColumn, clean, render
from odfd.control import wire
from odfd.errors import Usage

if TYPE_CHECKING:
    from odfd.control.client import ControlClient
if TYPE_CHECKING:
    import subprocess


PAGED: Final = ("table", "vertical", "markdown")
"""Formats for people."""
_LESS: Final = "FRSX"
"""Options of ``less``: it ends by itself if all fits on one page, and cuts long lines, which arrow keys show."""


def pager_of(environ: Mapping[str, str]) -> Sequence[str] | None:
    """Returns ``$PAGER``, or ``less``; ``None`` if disabled (``PAGER=cat``, or empty) or not installed."""
    import shlex
    import shutil

    command = environ.get("PAGER", "less")
    if environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    return words if words and words != ["cat"] and shutil.which(words[0]) else None


@contextmanager
def page_output(form: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Sends the output of the block through the pager; the block ends when the user quits the pager."""
    words = pager_of(environ) if form in PAGED and output.is_terminal() else None
    if words is None:
        yield
        return
    import subprocess

    with subprocess.Popen(
        words, stdin=subprocess.PIPE, env={**environ, "LESS": environ.get("LESS", _LESS)}, encoding="utf-8",
        errors="replace",
    ) as process:  # fmt: skip
        assert process.stdin is not None
        try:
            with output.redirected(process.stdin):
                yield
        except BrokenPipeError:
            output.remark("the pager was left: rows behind what it had were not read")
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            _wait(process)


def _wait(process: subprocess.Popen[str]) -> None:
    """Waits until the pager ends; ``^C`` is meant for the pager as long as it runs."""
    while True:
        try:
            process.wait()
        except KeyboardInterrupt:
            continue
        return


MOST: Final = 60
"""Characters of a cell in formats for people."""
FORMATS: Final = ("table", "vertical", "csv", "json", "ndjson", "parquet", "arrow", "markdown")
LINES: Final = ("csv", "ndjson")
"""Formats that the query's process writes itself for files and pipes; a terminal gets none of the rows' controls."""
FILES: Final = ("parquet", "arrow")
"""Formats that are written from Arrow; the others are written from JSON values."""
_NUMBERS: Final = ("int", "uint", "halffloat", "float", "double", "decimal")
"""Prefixes of types whose values are aligned to the right."""
_QUOTED: Final = re.compile(r"[\",\r\n]|^\s|\s$")


def write(answered: Answered, form: str) -> None:
    """Writes the whole answer to standard output in one of ``FILES``."""
    (_parquet if form == "parquet" else _arrow)(answered)


def show(answered: Shown, form: str) -> None:
    """Writes the whole answer to standard output in one of the other formats."""
    _SHOWN[form](answered)


def answer(client: ControlClient, request: Question, form: str) -> Answered | Shown | Printed:
    """Runs a query, and writes the whole answer to standard output. Returns its metadata."""
    if form in FILES:
        with query_batches(client, request) as answered:
            write(answered, form)
        return answered
    if form in LINES and not output.is_terminal():
        with query_lines(client, request, form) as lines:
            for text in lines.texts():
                output.say_bytes(text)
        return lines
    with query_values(client, request) as found, page_output(form, os.environ):
        show(found, form)
    return found


def explained_query(sql: str) -> str | None:
    """Returns the query of ``EXPLAIN SELECT …``, whose plan is wanted; ``None`` for another statement."""
    word, _, rest = sql.lstrip().partition(" ")
    return rest if word.lower() == "explain" and not rest.lstrip().lower().startswith("analyze") else None


def show_plan(client: ControlClient, request: Question) -> None:
    """Shows the plan of a query."""
    with query_values(client, with_fields(request, explain=True)) as plan:
        for page in plan.pages():
            output.say("\n".join(str(row[-1]) for row in page))


def check_form(form: str) -> None:
    """Checks the form before any request. Raises Usage."""
    if form not in FORMATS:
        raise Usage(f"rows are not written as {form}", hint=f"one of {', '.join(FORMATS)}")
    if form in FILES and output.is_terminal():
        raise Usage(f"{form} is for a file", hint=f"odfctl sql -o {form} '…' > FILE")


def remarks_of(head: wire.QueryHead, rows: int) -> list[str]:
    """Returns remarks for people: the number of rows, how far they may be relied on, and the blocks that were read."""
    lines = [f"{formatting.plural(rows, 'row')}, {head.standing}"]
    for standing in head.standings:
        if standing.blocks < standing.of:
            lines.append(
                f"Reach of {standing.name} for use: {standing.blocks} of {formatting.plural(standing.of, 'block')} "
                f"({standing.fact}): odfctl trust show {standing.name}"
            )
    lines += [
        f"read {pin.name} to block #{pin.sequence_number} {formatting.digest(pin.block)}"
        f"{', ' + pin.at if pin.at else ''}"
        for pin in head.pins
    ]
    return [*lines, *head.remarks]


def _columns(columns: Sequence[tuple[str, str]]) -> tuple[TableColumn[Sequence[Any]], ...]:
    return tuple(
        TableColumn(
            name,
            lambda row, place=place: formatting.cell(row[place]),  # type: ignore[misc]
            right=kind.startswith(_NUMBERS),
            most=MOST,
        )
        for place, (name, kind) in enumerate(columns)
    )


def _table(answered: Shown) -> None:
    columns = _columns(answered.columns)
    shown = False
    for rows in answered.pages():
        output.say(render(columns, rows))
        shown = True
    if not shown:
        output.say(render(columns, ()))


def _vertical(answered: Shown) -> None:
    names = [clean(name, MOST) for name, _ in answered.columns]
    wide = max(map(len, names), default=0)
    number = 0
    for rows in answered.pages():
        for row in rows:
            output.say(f"row {number}")
            for name, value in zip(names, row, strict=True):
                output.say(f"  {name:>{wide}}  {clean(formatting.cell(value), 2000)}")
            number += 1


def _markdown(answered: Shown) -> None:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(clean(cell, 2000).replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"

    output.say(line([name for name, _ in answered.columns]))
    output.say("|" + "---|" * len(answered.columns))
    for rows in answered.pages():
        for row in rows:
            output.say(line([formatting.cell(value) for value in row]))


def _csv(answered: Shown) -> None:
    """Writes CSV by RFC 4180; null is an empty field, an empty text a quoted one."""
    _print_csv([[name for name, _ in answered.columns]])
    for rows in answered.pages():
        _print_csv(rows)


def _print_csv(rows: Iterable[Sequence[Any]]) -> None:
    """Prints CSV unchanged to a file; on a terminal, without characters that control it."""
    text = csv_text(rows)
    if output.is_terminal():
        output.say(text.decode("utf-8", "surrogatepass"), end="")
    else:
        output.say_bytes(text)


def csv_text(rows: Iterable[Sequence[Any]]) -> bytes:
    """Returns rows as lines of CSV."""
    return "".join(",".join(map(_field, row)) + "\n" for row in rows).encode("utf-8", "surrogatepass")


def _field(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else _json(value)
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTED.search(text) else text


def _ndjson(answered: Shown) -> None:
    names = [name for name, _ in answered.columns]
    ndjson_text(names, ())
    for rows in answered.pages():
        output.say_json(ndjson_text(names, rows))


def ndjson_text(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns rows as lines of JSON. Raises Invalid for names that an object cannot have."""
    if twice := repeated(names):
        raise Invalid(
            f"two columns are called {twice[0]}", rule="query-columns", hint="an object has each name once: say AS"
        )
    return "\n".join(_json(dict(zip(names, row, strict=True))) for row in rows)


def _document(answered: Shown) -> None:
    """Writes one JSON document, while the rows arrive."""
    import msgspec

    columns = [{"name": name, "type": kind} for name, kind in answered.columns]
    head = msgspec.to_builtins(answered.head)
    output.say_json(f'{_json(head | {"columns": columns})[:-1]},"rows":[')
    first = True
    for rows in answered.pages():
        output.say_json(("" if first else ",") + ",\n".join(_json(row) for row in rows))
        first = False
    output.say_json("]}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Out(io.RawIOBase):
    """Standard output as a file that Arrow can write to."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        said = bytes(data)
        output.say_bytes(said)
        self._at += len(said)
        return len(said)


def _arrow(answered: Answered) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(pa.PythonFile(_Out(), mode="w"), answered.schema) as stream:
        for batch in answered.batches():
            stream.write_batch(batch)


def _parquet(answered: Answered) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from chain.data.uuids import named_of_texts, rows_of_texts

    schema = named_of_texts(answered.schema)
    with pq.ParquetWriter(pa.PythonFile(_Out(), mode="w"), schema, compression="zstd") as writer:
        for batch in answered.batches():
            writer.write_batch(rows_of_texts(batch, answered.schema))


_SHOWN: Final[Mapping[str, Callable[[Shown], None]]] = {
    "table": _table,
    "vertical": _vertical,
    "csv": _csv,
    "json": _document,
    "ndjson": _ndjson,
    "markdown": _markdown,
}
