"""Renders batches of rows as lines of CSV or JSON, column by column in Arrow.

The lines are those of ``chain.data.json_values``: times in RFC 3339, decimals and integers beyond 2^53 as text. In CSV
(RFC 4180) null is an empty field and an empty text a quoted one. Values of types that Arrow does not render so, such as
lists, are rendered one by one. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from chain.data.json_values import plain_values
from chain.errors import Invalid
from chain.repeats import repeated
from engines.query.requests import Lines

_BYTES: Final = 4 << 20
"""Bytes of rows that are rendered at a time, about."""
_ROWS: Final = 1 << 16
_SAFE_INTEGER: Final = 2**53
_SPACE: Final = r"\s\x0b\x1c-\x1f\x{85}\pZ"
_IN_QUOTES: Final = rf'[",\r\n]|^[{_SPACE}]|[{_SPACE}]$|^$'
_ESCAPED: Final = r'["\\\x00-\x1f]'
_ESCAPES: Final = tuple((chr(code), json.dumps(chr(code))[1:-1]) for code in (ord("\\"), ord('"'), *range(0x20)))
"""Characters and how JSON writes them; the backslash first, as the others are written with it."""
_PLAIN_FLOATS: Final = 1e-4, 1e10
"""Floating-point numbers between these are written without an exponent by Python and by Arrow."""
_FAR: Final = 253_402_300_800
"""The second at which the year 10000 begins."""


def render_lines(batch: pa.RecordBatch, form: Lines) -> Iterator[tuple[int, memoryview]]:
    """Yields numbers of rows, and their lines."""
    step = max(1, min(_ROWS, batch.num_rows * _BYTES // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, step):
        piece = batch.slice(start, step)
        yield piece.num_rows, _lines(piece, form)


def heading(names: Sequence[str], form: Lines) -> bytes:
    """Returns the lines before the rows. Raises Invalid for names that an object cannot have."""
    if form == "csv":
        fields = pa.array(names, pa.string())
        return ",".join(_csv_texts(fields).to_pylist()).encode() + b"\n"
    if twice := repeated(names):
        raise Invalid(
            f"two columns are called {twice[0]}", rule="query-columns", hint="an object has each name once: say AS"
        )
    return b""


def _lines(batch: pa.RecordBatch, form: Lines) -> memoryview:
    import pyarrow.compute as pc

    if form == "csv":
        fields = [_texts(column, is_json=False) for column in batch.columns]
        options = {"null_handling": "replace", "null_replacement": ""}
        whole = pc.binary_join_element_wise(pc.binary_join_element_wise(*fields, ",", **options), "", "\n")
    else:
        parts: list[Any] = []
        for place, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
            key = json.dumps(name, ensure_ascii=False)
            parts += [f"{',' if place else '{'}{key}:", _texts(column, is_json=True)]
        options = {"null_handling": "replace", "null_replacement": "null"}
        whole = pc.binary_join_element_wise(*parts, "}\n", "", **options)
    _, offsets, data = whole.buffers()
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[whole.offset] : ends[whole.offset + len(whole)]]


def _texts(values: pa.Array, *, is_json: bool) -> pa.StringArray:
    """Returns the values of a column as they stand in a line; null stays null."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _texts(values.dictionary_decode(), is_json=is_json)
    if pa.types.is_null(kind):
        return values.cast(pa.string())
    if pa.types.is_boolean(kind):
        return values.cast(pa.string())
    if pa.types.is_integer(kind):
        return _integers(values) if is_json else values.cast(pa.string())
    for fits, texts in _RENDERED:
        if fits(kind):
            found = texts(values)
            break
    else:
        return _one_by_one(values, is_json=is_json)
    if pa.types.is_floating(kind):
        return _unless_numbers(found) if is_json else found
    if not is_json:
        return _csv_texts(found) if pa.types.is_string(found.type) and _is_text(kind) else found
    return _json_texts(found) if _is_text(kind) else _around(found)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _one_by_one(values: pa.Array, *, is_json: bool) -> pa.StringArray:
    found = plain_values(values)
    if is_json:
        return pa.array([None if each is None else _json(each) for each in found], pa.string())
    return _csv_texts(
        pa.array([each if each is None or isinstance(each, str) else _json(each) for each in found], pa.string())
    )


def _integers(values: pa.Array) -> pa.StringArray:
    import pyarrow.compute as pc

    text = values.cast(pa.string())
    if values.type.bit_width < 64:
        return text
    least, most = pc.min_max(values).values()
    if (most.as_py() or 0) <= _SAFE_INTEGER and (least.as_py() or 0) >= -_SAFE_INTEGER:
        return text
    far = pc.greater(values, pa.scalar(_SAFE_INTEGER, values.type))
    if pa.types.is_signed_integer(values.type):
        far = pc.or_(far, pc.less(values, pa.scalar(-_SAFE_INTEGER, values.type)))
    return pc.if_else(far, _around(text), text)


def _floats(values: pa.Array) -> pa.StringArray:
    """Returns numbers as Python writes them."""
    import pyarrow.compute as pc

    wide = values.cast(pa.float64())
    size = pc.abs(wide)
    low, high = _PLAIN_FLOATS
    is_plain = pc.or_(pc.and_(pc.greater_equal(size, low), pc.less(size, high)), pc.equal(size, 0.0))
    text = wide.cast(pa.string())
    whole = pc.invert(pc.match_substring(text, "."))
    text = pc.if_else(whole, pc.binary_join_element_wise(text, "0", "."), text)
    if pc.all(is_plain, min_count=0).as_py():
        return text
    others = pc.invert(is_plain)
    written = pa.array(list(map(repr, pc.filter(wide, others).to_pylist())), pa.string())
    return pc.replace_with_mask(text, others.fill_null(False), written)


def _unless_numbers(text: pa.StringArray) -> pa.StringArray:
    """Puts what is no number of JSON (``nan``, ``inf``) into quotes."""
    import pyarrow.compute as pc

    words = pc.match_substring(text, "n")
    return pc.if_else(words, _around(text), text) if pc.any(words).as_py() else text


def _instants(values: pa.Array) -> pa.StringArray:
    """Returns times in RFC 3339, each with the fewest digits of fraction (0, 3, 6 or 9)."""
    import pyarrow.compute as pc

    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[values.type.unit]
    numbers = values.view(pa.int64())
    seconds = pc.divide(numbers, per)
    seconds = pc.if_else(pc.less(numbers, pc.multiply(seconds, per)), pc.subtract(seconds, 1), seconds)
    bounds = [each.as_py() for each in pc.min_max(seconds).values()]
    if None not in bounds and not -62_167_219_200 <= bounds[0] <= bounds[1] < _FAR:
        return pa.array(plain_values(values), pa.string())
    fractions = pc.subtract(numbers, pc.multiply(seconds, per))
    text = pc.binary_replace_slice(seconds.view(pa.timestamp("s")).cast(pa.string()), 10, 11, "T")
    if not pc.any(pc.not_equal(fractions, 0)).as_py():
        return pc.binary_join_element_wise(text, "Z", "")
    coded = pc.dictionary_encode(fractions)
    known = pa.array([_fraction(each, per) for each in coded.dictionary.to_pylist()], pa.string())
    return pc.binary_join_element_wise(text, known.take(coded.indices), "Z", "")


def _fraction(ticks: int, per: int) -> str:
    text = f".{ticks:0{len(str(per)) - 1}d}" if ticks else ""
    while text.endswith("000"):
        text = text[:-3]
    return text


def _csv_texts(text: pa.StringArray) -> pa.StringArray:
    """Puts what needs it into quotes."""
    import pyarrow.compute as pc

    special = pc.match_substring_regex(text, _IN_QUOTES)
    if not pc.any(special).as_py():
        return text
    return pc.if_else(special, _around(pc.replace_substring(text, '"', '""')), text)


def _json_texts(text: pa.StringArray) -> pa.StringArray:
    import pyarrow.compute as pc

    if pc.any(pc.match_substring_regex(text, _ESCAPED)).as_py():
        for character, written in _ESCAPES:
            if pc.any(pc.match_substring(text, character)).as_py():
                text = pc.replace_substring(text, character, written)
    return _around(text)


def _around(text: pa.StringArray) -> pa.StringArray:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise('"', text, '"', "")


def _as_text(values: pa.Array) -> pa.StringArray:
    return values.cast(pa.string())


def _has_zone(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_date_or_local(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


_RENDERED: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.StringArray]], ...]] = (
    (_is_text, _as_text),
    (pa.types.is_floating, _floats),
    (_has_zone, _instants),
    (_is_date_or_local, _as_text),
    (pa.types.is_decimal, _as_text),
)
"""Types that Arrow renders as ``plain_values`` does, and how."""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
