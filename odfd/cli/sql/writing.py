"""Writes an answer as it comes, for people (table, vertical, markdown) and for programs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chain.errors import Invalid
from odfd import output
from odfd.cli import words
from odfd.cli.sql.asking import Answered
from odfd.cli.table import TableColumn, clean, render
from odfd.control import wire
from odfd.errors import Usage

if TYPE_CHECKING:
    import pyarrow as pa

PAGE: Final = 1000
"""Rows of one table: columns are as wide as these want."""
MOST: Final = 60
"""Characters of a cell for people."""
FORMATS: Final = ("table", "vertical", "csv", "json", "ndjson", "parquet", "arrow", "markdown")
_BINARY: Final = ("parquet", "arrow")
_QUOTED: Final = re.compile(r"[\",\r\n]|^\s|\s$")


def write(answered: Answered, form: str) -> None:
    """The whole answer, to standard output. Raises Usage for bytes on a terminal."""
    _WRITERS[form](answered)


def check_form(form: str) -> None:
    """Before anything is asked."""
    if form in _BINARY and output.is_terminal():
        raise Usage(f"{form} is for a file", hint=f"odfctl sql -o {form} '…' > FILE")


def told(head: wire.QueryHead, rows: int) -> list[str]:
    """For a person, beside the rows: how many, how far they may be relied on, and what they were read from."""
    lines = [f"{words.plural(rows, 'row')}, {head.standing}"]
    for standing in head.standings:
        if standing.blocks < standing.of:
            lines.append(
                f"Of {standing.name} rely on {standing.blocks} of {words.plural(standing.of, 'block')} "
                f"({standing.fact}): odfctl trust show {standing.name}"
            )
    lines += [
        f"read {pin.name} to block #{pin.sequence_number} {words.digest(pin.block)}{', ' + pin.at if pin.at else ''}"
        for pin in head.pins
    ]
    return [*lines, *head.remarks]


def _pages(answered: Answered) -> Iterator[list[tuple[Any, ...]]]:
    from chain.data.plain import plain_rows  # it brings Arrow, which is loaded while the daemon works (``asked``)

    for batch in answered.batches():
        for start in range(0, batch.num_rows, PAGE):
            yield plain_rows(batch.slice(start, PAGE))


def _columns(schema: pa.Schema) -> tuple[TableColumn[tuple[Any, ...]], ...]:
    import pyarrow.types as kinds

    return tuple(
        TableColumn(
            field.name,
            lambda row, place=place: words.cell(row[place]),  # type: ignore[misc]
            right=kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_decimal(field.type),
            most=MOST,
        )
        for place, field in enumerate(schema)
    )


def _table(answered: Answered) -> None:
    columns = _columns(answered.schema)
    shown = False
    for rows in _pages(answered):
        output.say(render(columns, rows))
        shown = True
    if not shown:
        output.say(render(columns, ()))


def _vertical(answered: Answered) -> None:
    names = [clean(name, MOST) for name in answered.schema.names]
    wide = max(map(len, names), default=0)
    number = 0
    for rows in _pages(answered):
        for row in rows:
            output.say(f"row {number}")
            for name, value in zip(names, row, strict=True):
                output.say(f"  {name:>{wide}}  {clean(words.cell(value), 2000)}")
            number += 1


def _markdown(answered: Answered) -> None:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(clean(cell, 2000).replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"

    output.say(line(list(answered.schema.names)))
    output.say("|" + "---|" * len(answered.schema))
    for rows in _pages(answered):
        for row in rows:
            output.say(line([words.cell(value) for value in row]))


def _csv(answered: Answered) -> None:
    """RFC 4180; no value is an empty field, an empty text a quoted one."""
    _say_csv([answered.schema.names])
    for rows in _pages(answered):
        _say_csv(rows)


def _say_csv(rows: Iterable[Sequence[Any]]) -> None:
    """As it is for a file; on a terminal without what that obeys."""
    text = "".join(",".join(map(_field, row)) + "\n" for row in rows)
    if output.is_terminal():
        output.say(text, end="")
    else:
        output.say_bytes(text.encode("utf-8", "surrogatepass"))


def _field(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else _json(value)
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTED.search(text) else text


def _ndjson(answered: Answered) -> None:
    names = answered.schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Invalid(
            f"two columns are called {twice[0]}", rule="query-columns", hint="an object has each name once: say AS"
        )
    for rows in _pages(answered):
        output.say_json("\n".join(_json(dict(zip(names, row, strict=True))) for row in rows))


def _document(answered: Answered) -> None:
    """One document, written as rows come."""
    columns = [{"name": field.name, "type": str(field.type)} for field in answered.schema]
    head = msgspec.to_builtins(answered.head)
    output.say_json(f'{_json(head | {"columns": columns})[:-1]},"rows":[')
    first = True
    for rows in _pages(answered):
        output.say_json(("" if first else ",") + ",\n".join(_json(row) for row in rows))
        first = False
    output.say_json("]}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Out(io.RawIOBase):
    """Standard output, for Arrow."""

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

    with pq.ParquetWriter(pa.PythonFile(_Out(), mode="w"), answered.schema, compression="zstd") as writer:
        for batch in answered.batches():
            writer.write_batch(batch)


_WRITERS: Final[Mapping[str, Callable[[Answered], None]]] = {
    "table": _table,
    "vertical": _vertical,
    "csv": _csv,
    "json": _document,
    "ndjson": _ndjson,
    "parquet": _parquet,
    "arrow": _arrow,
    "markdown": _markdown,
}
