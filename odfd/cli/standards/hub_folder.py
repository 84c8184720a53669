"""Writes a folder as repositories of datasets on Hugging Face have it: a card, files of Parquet, and their origin."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chain.errors import Fault
from odfd.cli import formatting
from odfd.cli.descriptions import Described, describe
from odfd.cli.new_file import NewFile
from odfd.cli.sql.output_file import PLAIN_PARQUET, Destination, Exported, to_files
from odfd.cli.sql.read_options import all_rows, source, without_places
from odfd.cli.standards import huggingface
from odfd.control import wire
from odfd.errors import Usage, unwritable

if TYPE_CHECKING:
    import pyarrow as pa

    from odfd.control.client import Client

ROWS_PER_FILE: Final = 1_000_000
"""So that files stay below the gigabyte beyond which the Hub advises others, unless a row takes a kilobyte."""
_UNPROVEN: Final = frozenset({"query-prove", "query-proof"})


class HubFolder:
    """A folder to write. Raises Usage or Invalid, before any row is read, for what cannot be one."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.describe or args.table:
            option = "--table" if args.table else "--describe"
            raise Usage(
                f"{option} is not for a folder of Hugging Face", hint=f"leave out {option}: the folder has a card"
            )
        self._args = args
        self._folder = Path(args.to).expanduser()
        if "://" in args.to or (self._folder.exists() and not self._folder.is_dir()):
            raise Usage(
                f"{args.to} is no folder", rule=huggingface.RULE, hint="name a folder: it is made if it is not there"
            )
        self._features: list[dict[str, Any]] = []
        self._made = [each for each in (self._folder, self._folder / huggingface.DATA) if not each.exists()]

    def write(self, client: Client, told: Callable[[int, int], None]) -> tuple[Exported, list[str]]:
        """Writes rows, origin and last the card. Returns the answer and remarks for people. A fault leaves nothing."""
        args = self._args
        written: Sequence[Path] = ()
        try:
            self._make()
            card, origin = (
                NewFile(self._folder / name, replace=args.replace) for name in (huggingface.FILE, huggingface.PROOF)
            )
            exported = self._rows(client, told)
            written = exported.files
            rows = describe(client, args.ref, "parquet", exported, current=args.current)
            content = huggingface.HubContent(self._features, exported.rows, _sum_sizes(exported.files))
            text = huggingface.card(rows, content, is_proven=exported.proof is not None)
            origin.write(_origin(rows, exported.proof))
            written = [*written, origin.path]
            card.write(text)
        except BaseException:
            self._unmake(written)
            raise
        return exported, [*self._stale(exported.files), *_remarks(rows, exported)]

    def _make(self) -> None:
        for each in self._made:
            try:
                each.mkdir()
            except OSError as error:
                raise unwritable(each, error, huggingface.RULE) from error

    def _unmake(self, written: Sequence[Path]) -> None:
        """Removes what a failed export has made; files that replaced others stay."""
        with suppress(OSError):
            for each in () if self._args.replace else written:
                each.unlink(missing_ok=True)
            for folder in reversed(self._made):
                folder.rmdir()

    def _rows(self, client: Client, told: Callable[[int, int], None]) -> Exported:
        args = self._args
        request = wire.QueryRequest(sql=all_rows(source(args.ref, args)), prove=not args.no_proof)
        path = self._folder / huggingface.DATA / f"{huggingface.ROWS}.parquet"
        place = Destination(path, args.rows_per_file or ROWS_PER_FILE, args.replace)
        try:
            with without_places():
                return to_files(client, request, PLAIN_PARQUET, place, told, self._check)
        except Fault as fault:
            if fault.rule in _UNPROVEN:
                fault.hint = "; ".join(filter(None, (fault.hint, "--no-proof leaves the signed statement out")))
            raise

    def _check(self, schema: pa.Schema) -> None:
        """Raises Invalid, before a file is begun, for a column that readers could not read."""
        self._features = huggingface.features(schema)

    def _stale(self, files: Sequence[Path]) -> list[str]:
        """Removes further files of an earlier export, since the card's pattern takes them. Returns a remark."""
        folder = self._folder / huggingface.DATA
        stale = sorted({*folder.glob(f"{huggingface.ROWS}-*.parquet")} - {*files})
        for each in stale:
            try:
                each.unlink()
            except OSError as error:
                raise unwritable(each, error, huggingface.RULE) from error
        return [f"{formatting.plural(len(stale), 'file')} of an earlier export removed"] if stale else []


def _sum_sizes(files: Sequence[Path]) -> int:
    import pyarrow.parquet as pq

    footers = [pq.read_metadata(each) for each in files]
    return sum(each.row_group(number).total_byte_size for each in footers for number in range(each.num_row_groups))


def _origin(rows: Described, proof: dict[str, Any] | None) -> str:
    files = [
        {"path": f"{huggingface.DATA}/{each.name}", "bytes": each.bytes, "sha256": each.sha256} for each in rows.files
    ]
    found: dict[str, Any] = {**rows.provenance, "files": files}
    if proof is not None:
        found["statement"] = proof
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _remarks(rows: Described, written: Exported) -> list[str]:
    told = [f"{huggingface.FILE} is the card; {huggingface.PROOF} says where the rows come from"]
    if not written.rows:
        told.append("no rows yet: the library datasets does not load a split without rows")
    if written.proof is None:
        told.append("no signed statement: readers cannot check the rows against the chain")
    if rows.unnamed:
        told.append(f"{formatting.plural(rows.unnamed, 'input')} not named: private, or not held here")
    return told
