"""Writes the card of exported rows for Hugging Face: README.md, whose header in YAML tells readers what to load. Pure.

Spec: the Hub's documentation of dataset cards (``configs``, ``data_files``) and of its licences; features as the
library ``datasets`` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chain.errors import Invalid
from chain.terminal_text import one_line, visible
from chain.wording import plural
from odfd.cli.descriptions import Described
from odfd.cli.standards.frictionless import slug

if TYPE_CHECKING:
    import pyarrow as pa

FILE: Final = "README.md"
PROOF: Final = "odf.json"
"""What ties the rows to the chain, beside the card."""
DATA: Final = "data"
ROWS: Final = "rows"
"""Files of rows are ``data/rows-00001.parquet``, and so on."""
RULE: Final = "hub-folder"
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
            "download_size": sum(each.bytes for each in rows.files),
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
    for each in detail.attachments:
        if each.path.lower() == "readme.md":
            yield f"\n{visible(each.content).strip()}"
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
