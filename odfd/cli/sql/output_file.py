"""Writes an answer to new files, which appear once the last row is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Protocol

from chain.errors import Invalid
from engines.query.installed import need_sql
from odfd.cli import formatting
from odfd.cli.new_file import NewFile
from odfd.cli.sql.formats import FILES, LINES, csv_text, ndjson_text
from odfd.cli.sql.query import Answered, query_batches, query_lines, query_values
from odfd.control import wire
from odfd.errors import Usage, unwritable

if TYPE_CHECKING:
    from odfd.control.client import ControlClient

MOST_FILES: Final = 99_999
"""Files of one export, so that the order of their names is that of their rows."""
PLAIN_PARQUET: Final = "plain parquet"
"""Parquet whose UUIDs are texts, for readers that know no others."""
_Rows = Any
"""A batch of Arrow, or a page of values."""


class RowWriter(Protocol):
    """Writes rows of one answer to one file."""

    def write(self, rows: _Rows) -> None: ...

    def close(self) -> None: ...

    def remarks(self) -> list[str]:
        """Lists losses of the file format against the dataset."""


class Destination(NamedTuple):
    """The file of an answer; with ``rows_per_file``, several files: ``may-00001.csv`` for ``may.csv``.

    ``replace``: a file that is there already is written anew; otherwise it is refused.
    """

    path: Path
    rows_per_file: int | None = None
    replace: bool = False


class Exported(NamedTuple):
    """A written answer."""

    head: wire.QueryHead
    rows: int
    remarks: Sequence[str]
    files: Sequence[Path]
    columns: Sequence[tuple[str, str]]
    """Names of the columns, and types as Arrow spells them."""
    proof: dict[str, Any] | None = None
    """The signed statement about the answer, if it was requested."""


def to_files(
    client: ControlClient,
    request: wire.QueryRequest,
    form: str,
    place: Destination,
    told: Callable[[int, int], None] = lambda _rows, _bytes: None,
    check: Callable[[Any], None] = lambda _columns: None,
) -> Exported:
    """Writes an answer. ``told`` is called after each page with the numbers of rows and bytes written so far.

    ``check`` is called with the columns before a file is begun, and raises to refuse them.

    Raises Invalid if a file is there already, Usage or Environment if one cannot be written, and then leaves none.
    """
    is_arrow, rows_per_file = form in (*FILES, PLAIN_PARQUET), place.rows_per_file
    if form in LINES and rows_per_file is None:
        return _lines_to_file(client, request, form, place, told)
    with _Files(place) as files, (query_batches if is_arrow else query_values)(client, request) as answered:
        columns = answered.schema if isinstance(answered, Answered) else answered.columns
        check(columns)
        files.begin(form, columns)
        room, rows = rows_per_file, 0
        for page in answered.batches() if isinstance(answered, Answered) else answered.pages():
            for piece in _pieces(page, room, rows_per_file):
                if room == 0:
                    files.begin(form, columns)
                    room = rows_per_file
                files.write(piece)
                room = None if room is None else room - len(piece)
                rows += len(piece)
            told(rows, files.written())
        remarks = files.keep()
        proof = answered.proof if isinstance(answered, Answered) else None
        return Exported(answered.head, answered.rows, remarks, files.places, _spell_types(columns), proof)


def _lines_to_file(
    client: ControlClient, request: wire.QueryRequest, form: str, place: Destination, told: Callable[[int, int], None]
) -> Exported:
    """Writes an answer as the query's process rendered it."""
    with _Files(place) as files, query_lines(client, request, form) as answered:
        files.begin("lines", answered.columns)
        for text in answered.texts():
            files.write(text)
            told(answered.rows, files.written())
        remarks = files.keep()
        return Exported(answered.head, answered.rows, remarks, files.places, answered.columns)


def _spell_types(columns: Any) -> Sequence[tuple[str, str]]:
    """Returns the columns of an Arrow schema or of values, with types as Arrow spells them."""
    return [column if isinstance(column, tuple) else (column.name, str(column.type)) for column in columns]


def _pieces(page: _Rows, room: int | None, most: int | None) -> Iterator[_Rows]:
    """Splits a page into rows for one file each: first for the file that has ``room`` left, then for the next ones."""
    start = 0
    while start < len(page):
        take = len(page) if most is None else (room or most)
        yield page[start : start + take]
        start, room = start + take, None


class _Files:
    """Files that are being written, beside their final places; those that are not kept are removed at the end."""

    def __init__(self, place: Destination) -> None:
        self._path, self._parted, self._replace = place.path, place.rows_per_file is not None, place.replace
        self._made: list[tuple[Path, Path]] = []
        self._targets: dict[str, NewFile] = {}
        self._remarks: dict[str, None] = {}
        self._writer: RowWriter | None = None
        self._open = ExitStack()
        """Closes the open writer and file if the export is abandoned."""

    def __enter__(self) -> _Files:
        self._free(1)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # of a file that is given up, whose buffer does not fit on the disk either
            self._open.close()
        for part, _place in self._made:
            part.unlink(missing_ok=True)

    @property
    def places(self) -> Sequence[Path]:
        return [place for _part, place in self._made]

    def written(self) -> int:
        """Returns the bytes of all files so far, without buffered ones."""
        return sum(part.stat().st_size for part, _place in self._made)

    def begin(self, form: str, columns: Any) -> None:
        """Completes the present file, and begins the next."""
        self._finish()
        if len(self._made) >= MOST_FILES:
            raise Invalid(
                f"the rows take more than {formatting.plural(MOST_FILES, 'file')}",
                rule="export-file",
                hint="--rows-per-file sets how many rows each has",
            )
        name = self._free(len(self._made) + 1)
        part = self._path.with_name(f".{name}.{os.getpid()}")
        file: BinaryIO = self._do(part.open, "xb")
        self._made.append((part, self._path.with_name(name)))
        self._open.enter_context(file)
        self._writer = self._do(_WRITERS[form], file, columns)
        self._open.callback(_given_up, self._writer)

    def _name(self, number: int) -> str:
        return f"{self._path.stem}-{number:05d}{self._path.suffix}" if self._parted else self._path.name

    def _free(self, number: int) -> str:
        """Returns the name of a file of the export. Raises as ``NewFile``."""
        name = self._name(number)
        target = NewFile(self._path.with_name(name), replace=self._replace)
        if target.is_special:
            raise Usage(f"{target.path} is no regular file", rule="export-file", hint="- prints the rows")
        self._targets[name] = target
        return name

    def write(self, rows: _Rows) -> None:
        assert self._writer is not None
        self._do(self._writer.write, rows)

    def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Does some work on a file. Raises Usage or Environment for errors of the disk."""
        try:
            return work(*arguments)
        except OSError as error:
            raise unwritable(self._path, error, "export-file") from error

    def _finish(self) -> None:
        if self._writer is not None:
            self._do(self._writer.close)
            self._remarks.update(dict.fromkeys(self._writer.remarks()))
            self._writer = None
            self._do(self._open.close)

    def keep(self) -> Sequence[str]:
        """Moves the files to their final places. Returns remarks on them."""
        self._finish()
        for part, place in self._made:
            self._do(self._targets[place.name].publish, part, place)
        if not self._parted:
            return [*self._remarks]
        names = " to ".join(dict.fromkeys(self._made[at][1].name for at in (0, -1)))
        parts = [f"{formatting.plural(len(self._made), 'file')}: {names}"]
        beyond = self._name(len(self._made) + 1)
        if self._path.with_name(beyond).exists():
            parts.append(f"{beyond} was there before, and is not of this export")
        return [*parts, *self._remarks]


def _given_up(writer: RowWriter) -> None:
    """Closes an abandoned writer before its file is closed, or it would write when it is collected; ignores errors."""
    with suppress(Exception):
        writer.close()


class _Texts:
    """Writes rows as lines of JSON."""

    def __init__(self, out: BinaryIO, columns: Sequence[tuple[str, str]]) -> None:
        self._out, self._names = out, [name for name, _ in columns]

    def write(self, rows: _Rows) -> None:
        self._out.write((ndjson_text(self._names, rows) + "\n").encode("utf-8", "surrogatepass"))

    def close(self) -> None: ...

    def remarks(self) -> list[str]:
        return []


class _Lines(_Texts):
    """Writes lines as they are."""

    def write(self, rows: _Rows) -> None:
        self._out.write(rows)


class _Csv(_Texts):
    """Writes rows as CSV below a heading."""

    def __init__(self, out: BinaryIO, columns: Sequence[tuple[str, str]]) -> None:
        super().__init__(out, columns)
        out.write(csv_text([self._names]))

    def write(self, rows: _Rows) -> None:
        self._out.write(csv_text(rows))


class _Batches:
    """Writes batches by a writer of Arrow."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, rows: _Rows) -> None:
        self._writer.write_batch(rows)

    def close(self) -> None:
        self._writer.close()

    def remarks(self) -> list[str]:
        return []


def _arrow(out: BinaryIO, schema: Any) -> RowWriter:
    import pyarrow as pa

    return _Batches(pa.ipc.new_stream(out, schema))


class _Parquet(_Batches):
    """Writes UUIDs as such, not as texts."""

    def __init__(self, out: BinaryIO, schema: Any) -> None:
        import pyarrow.parquet as pq

        from chain.data.uuids import named_of_texts

        super().__init__(pq.ParquetWriter(out, named_of_texts(schema), compression="zstd"))
        self._schema = schema

    def write(self, rows: _Rows) -> None:
        from chain.data.uuids import rows_of_texts

        super().write(rows_of_texts(rows, self._schema))


def _plain_parquet(out: BinaryIO, schema: Any) -> RowWriter:
    import pyarrow.parquet as pq

    return _Batches(pq.ParquetWriter(out, schema.remove_metadata(), compression="zstd"))


def _sheet(out: BinaryIO, columns: Sequence[tuple[str, str]]) -> RowWriter:
    need_sql("xlsxwriter")
    from odfd.cli.sql.sheet import SheetWriter

    return SheetWriter(out, columns)


_WRITERS: Final[dict[str, Callable[[BinaryIO, Any], RowWriter]]] = {
    "lines": _Lines,
    "csv": _Csv,
    "ndjson": _Texts,
    "parquet": _Parquet,
    PLAIN_PARQUET: _plain_parquet,
    "arrow": _arrow,
    "xlsx": _sheet,
}
