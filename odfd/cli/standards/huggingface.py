"""Writes a folder as repositories of datasets on Hugging Face have it: a card, files of Parquet, and their origin.

The card is README.md, whose header in YAML tells readers what to load. Spec: the Hub's documentation of dataset cards
(``configs``, ``data_files``) and of its licences; features as the library ``datasets`` writes them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chain.errors import Fault, Invalid
from chain.terminal_text import one_line, visible
from chain.wording import plural
from odfd.cli import formatting
from odfd.cli.descriptions import Described, describe
from odfd.cli.new_file import NewFile
from odfd.cli.sql.output_file import PLAIN_PARQUET, Destination, Exported, to_files
from odfd.cli.sql.read_options import all_rows, source, without_places
from odfd.cli.standards.frictionless import slug
from odfd.control import wire
from odfd.errors import Usage, unwritable

if TYPE_CHECKING:
    import pyarrow as pa

    from odfd.control.client import ControlClient

FILE: Final = "README.md"
PROOF: Final = "odf.json"
"""What ties the rows to the chain, beside the card."""
DATA: Final = "data"
ROWS: Final = "rows"
"""Files of rows are ``data/rows-00001.parquet``, and so on."""
ROWS_PER_FILE: Final = 1_000_000
"""So that files stay below the gigabyte beyond which the Hub advises others, unless a row takes a kilobyte."""
RULE: Final = "hub-folder"
_UNPROVEN: Final = frozenset({"query-prove", "query-proof"})
_LICENSES: Final = (
    "apache-2.0 mit afl-3.0 artistic-2.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc0-1.0 cc-by-2.0 cc-by-2.5"
    " cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0"
    " cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0"
    " cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gpl-2.0 gpl-3.0 lgpl-2.1"
    " lgpl-3.0 isc ms-pl mpl-2.0 odc-by odbl osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl"
)
"""Licences that the Hub knows, by its names: SPDX's in small letters, of some without the version."""
_SIZES: Final = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
"""Ends of the Hub's classes of size; the first is of a thousand rows."""
_PLAIN: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
_FRONT: Final = "---\n"


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
            raise Usage(f"{args.to} is no folder", rule=RULE, hint="name a folder: it is made if it is not there")
        self._features: list[dict[str, Any]] = []
        self._made = [each for each in (self._folder, self._folder / DATA) if not each.exists()]

    def write(self, client: ControlClient, told: Callable[[int, int], None]) -> tuple[Exported, list[str]]:
        """Writes rows, origin and last the card. Returns the answer and remarks for people. A fault leaves nothing."""
        args = self._args
        written: Sequence[Path] = ()
        try:
            self._make()
            readme, origin = (NewFile(self._folder / name, replace=args.replace) for name in (FILE, PROOF))
            exported = self._rows(client, told)
            written = exported.files
            rows = describe(client, args.ref, "parquet", exported, current=args.current)
            content = HubContent(self._features, exported.rows, _sum_sizes(exported.files))
            text = card(rows, content, is_proven=exported.proof is not None)
            origin.write(_origin_file(rows, exported.proof))
            written = [*written, origin.path]
            readme.write(text)
        except BaseException:
            self._unmake(written)
            raise
        return exported, [*self._stale(exported.files), *_remarks(rows, exported)]

    def _make(self) -> None:
        for each in self._made:
            try:
                each.mkdir()
            except OSError as error:
                raise unwritable(each, error, RULE) from error

    def _unmake(self, written: Sequence[Path]) -> None:
        """Removes what a failed export has made; files that replaced others stay."""
        with suppress(OSError):
            for each in () if self._args.replace else written:
                each.unlink(missing_ok=True)
            for folder in reversed(self._made):
                folder.rmdir()

    def _rows(self, client: ControlClient, told: Callable[[int, int], None]) -> Exported:
        args = self._args
        request = wire.QueryRequest(sql=all_rows(source(args.ref, args)), prove=not args.no_proof)
        path = self._folder / DATA / f"{ROWS}.parquet"
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
        self._features = features(schema)

    def _stale(self, files: Sequence[Path]) -> list[str]:
        """Removes further files of an earlier export, since the card's pattern takes them. Returns a remark."""
        folder = self._folder / DATA
        stale = sorted({*folder.glob(f"{ROWS}-*.parquet")} - {*files})
        for each in stale:
            try:
                each.unlink()
            except OSError as error:
                raise unwritable(each, error, RULE) from error
        return [f"{formatting.plural(len(stale), 'file')} of an earlier export removed"] if stale else []


def _sum_sizes(files: Sequence[Path]) -> int:
    import pyarrow.parquet as pq

    footers = [pq.read_metadata(file) for file in files]
    return sum(
        footer.row_group(number).total_byte_size for footer in footers for number in range(footer.num_row_groups)
    )


def _origin_file(rows: Described, proof: dict[str, Any] | None) -> str:
    files = [{"path": f"{DATA}/{file.name}", "bytes": file.bytes, "sha256": file.sha256} for file in rows.files]
    found: dict[str, Any] = {**rows.provenance, "files": files}
    if proof is not None:
        found["statement"] = proof
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _remarks(rows: Described, written: Exported) -> list[str]:
    told = [f"{FILE} is the card; {PROOF} says where the rows come from"]
    if not written.rows:
        told.append("no rows yet: the library datasets does not load a split without rows")
    if written.proof is None:
        told.append("no signed statement: readers cannot check the rows against the chain")
    if rows.unnamed:
        told.append(f"{formatting.plural(rows.unnamed, 'input')} not named: private, or not held here")
    return told


class HubContent(NamedTuple):
    """The content of the files."""

    columns: list[dict[str, Any]]
    """As ``features`` describes them."""
    rows: int
    bytes: int
    """Without compression."""


def card(rows: Described, content: HubContent, *, is_proven: bool) -> str:
    """Builds README.md. ``is_proven``: whether the origin has a signed statement."""
    import yaml

    header = yaml.safe_dump(_header(rows, content), sort_keys=False, allow_unicode=True, width=1000)
    return f"{_FRONT}{header}{_FRONT}\n" + "\n".join(_body(rows, is_proven)) + "\n"


def license_of(spdx_id: str) -> str | None:
    """Returns the Hub's name of a licence; ``None`` if it has none."""
    name = spdx_id.lower().removesuffix("-only").removesuffix("-or-later")
    return next((each for each in (name, name.rpartition("-")[0]) if each in _LICENSES.split()), None)


def size_category(count: int) -> str:
    """Returns the Hub's class of a number of rows: ``1K<n<10K``."""
    end = 1000
    for place, name in enumerate(_SIZES):
        if count < end:
            return f"{_SIZES[place - 1]}<n<{name}" if place else f"n<{name}"
        end *= 10
    return f"n>{_SIZES[-1]}"


def features(schema: pa.Schema) -> list[dict[str, Any]]:
    """Describes columns as the library does. Raises Invalid for types that it does not have."""
    return [{"name": field.name, **_feature(field.type, field.name)} for field in schema]


def _feature(kind: pa.DataType, column: str) -> dict[str, Any]:
    import pyarrow.types as types

    if types.is_struct(kind):
        return {"struct": [{"name": each.name, **_feature(each.type, column)} for each in kind]}
    if types.is_large_list(kind):
        return {"large_list": _item(kind, column)}
    if types.is_fixed_size_list(kind):
        return {"list": _item(kind, column), "length": kind.list_size}
    if types.is_list(kind):
        return {"list": _item(kind, column)}
    if types.is_dictionary(kind):
        return _feature(kind.value_type, column)
    if types.is_nested(kind):
        raise Invalid(
            f"the column {column!r} is {kind}, which readers of Hugging Face do not have",
            rule=RULE,
            hint="a derived dataset can make a list of structs of it; --format parquet writes it as it is",
        )
    name = str(kind)
    return {"dtype": _PLAIN.get(name, name.partition("[")[0] if types.is_date(kind) else name)}


def _item(kind: pa.DataType, column: str) -> Any:
    """Describes the items of a list: a type by its name alone, a struct by its columns."""
    item = _feature(kind.value_type, column)
    return item.get("dtype", item.get("struct", item))


def _header(rows: Described, content: HubContent) -> dict[str, Any]:
    detail = rows.detail
    name = one_line(detail.dataset.name)
    fields: dict[str, Any] = {
        "pretty_name": name,
        **_license(rows),
        "tags": [*dict.fromkeys([*map(one_line, detail.keywords), "open-data-fabric"])],
        "size_categories": [size_category(content.rows)],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": f"{DATA}/{ROWS}-*.parquet"}]}],
        "dataset_info": {
            "features": content.columns,
            "splits": [{"name": "train", "num_bytes": content.bytes, "num_examples": content.rows}],
            "download_size": sum(file.bytes for file in rows.files),
            "dataset_size": content.bytes,
        },
    }
    return fields


def _license(rows: Described) -> dict[str, str]:
    found = rows.detail.license
    if found is None:
        return {}
    if known := license_of(found.spdx_id or ""):
        return {"license": known}
    name = slug(found.spdx_id or found.short_name or found.name)
    return {
        "license": "other",
        "license_name": name,
        **({"license_link": rows.license_url} if rows.license_url else {}),
    }


def _body(rows: Described, is_proven: bool) -> Iterator[str]:
    detail = rows.detail
    yield f"# {one_line(detail.dataset.name)}"
    if detail.description:
        yield f"\n{visible(detail.description)}"
    for attachment in detail.attachments:
        if attachment.path.lower() == "readme.md":
            yield f"\n{visible(attachment.content).strip()}"
    yield "\n## Columns\n\n| column | type | |\n|---|---|---|"
    for column in rows.columns:
        yield "| " + " | ".join(map(_cell, (column.name, column.type, column.comment))) + " |"
    yield "\n## Origin\n"
    yield from _origin(rows, is_proven)


def _origin(rows: Described, is_proven: bool) -> Iterator[str]:
    detail = rows.detail
    pins = " and ".join(f"`{pin.block}` (#{pin.sequence_number})" for pin in rows.head.pins)
    yield f"The rows of the dataset `{detail.dataset.id}` of Open Data Fabric, to the block {pins}, in"
    yield f"{plural(len(rows.files), 'file')}. `{PROOF}` has the hash of each file."
    if is_proven:
        yield "It also has a statement about the rows, which the node that wrote them has signed. Who has the dataset"
        yield f"checks by it that the files and the chain have these rows:\n\n    odfctl trust recheck {PROOF}"
    if rows.sources:
        yield (
            "\nDerived from: " + ", ".join(f"{one_line(name)} (`{identity}`)" for name, identity in rows.sources) + "."
        )


def _cell(text: str) -> str:
    return re.sub(r"([|<`\\])", r"\\\1", one_line(text))
