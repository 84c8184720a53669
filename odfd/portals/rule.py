"""Checks rows against the rule of a portal, with Arrow: which are left out, and which may not be published. Pure.

Every block is checked by itself and together with all before it. A group of fewer than k rows in one block could be
told by comparing the chain before and after it, however many rows of that group came before; so each block needs k of
each. A group with a count is published only once, since the difference of two counts may tell of few people.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from chain.errors import Refused
from chain.libraries import pa, pc
from chain.model.portal import PortalRule, Suppression
from chain.wording import agree, plural

PORTAL: Final = "portal-"
"""Prefix of the names of all rules of portals."""
K_ANONYMITY: Final = "portal-k-anonymity"
SMALL_COUNT: Final = "portal-small-count"
DIFFERENCE: Final = "portal-difference"
COLUMNS: Final = "portal-columns"
MAX_GROUPS: Final = 20_000_000
"""Most groups that are compared at a time; they take some gigabytes of memory at most."""
_COUNT: Final = "count_all"


class Breach(NamedTuple):
    """A part of the rule that rows break, described with numbers but without values."""

    rule: str
    message: str


def check_columns(rule: PortalRule, schema: pa.Schema) -> None:
    """Raises Refused for columns of the rule that are missing, or of a type that cannot be compared."""
    there = set(schema.names)
    for name in rule.columns:
        if name not in there:
            raise Refused(f"there is no column {name!r}", rule=COLUMNS, hint=f"columns are {', '.join(schema.names)}")
        if pa.types.is_nested(schema.field(name).type):
            raise Refused(f"column {name!r} has parts, which are not compared", rule=COLUMNS, hint="name others")
    for each in rule.suppress:
        if not pa.types.is_integer(schema.field(each.count).type):
            text = f"column {each.count!r} counts nothing: it is {schema.field(each.count).type}"
            raise Refused(text, rule=COLUMNS, hint="name a column of whole numbers")


def filter_rows(rule: PortalRule, rows: pa.Table) -> pa.Table:
    """Returns the rows that no part of the rule leaves out; a missing count is small."""
    for each in rule.suppress:
        rows = rows.filter(pc.fill_null(pc.greater_equal(rows.column(each.count), each.below), False))
    return rows


def breaches(rule: PortalRule, rows: pa.Table, earlier: Earlier) -> Iterator[Breach]:
    """Yields what forbids the rows of one block, and adds their groups to ``earlier``, those of the blocks before."""
    said = rule.k_anonymity
    if said is not None and rows.num_rows:
        sizes = _groups(rows, said.quasi_identifiers).column(_COUNT)
        small = _true(pc.less(sizes, said.k))
        if small:
            text = f"{plural(small, 'group')} of fewer rows than {said.k} among {plural(len(sizes), 'group')}"
            yield Breach(K_ANONYMITY, f"{text} alike in {', '.join(said.quasi_identifiers)}")
    for number, each in enumerate(rule.suppress):
        if left := rows.num_rows - filter_rows(PortalRule(input=rule.input, suppress=(each,)), rows).num_rows:
            yield Breach(SMALL_COUNT, f"{plural(left, 'row')} with {each.count} below {each.below}")
        if again := earlier.take(number, rows):
            text = f"{plural(again, 'group')} of {', '.join(each.groups)} {agree(again, 'is', 'are')} published again"
            yield Breach(DIFFERENCE, f"{text}, and the difference may reveal fewer than {each.below}")


class Earlier:
    """The groups that were published before, for each part of the rule that suppresses small counts."""

    def __init__(self, rule: PortalRule) -> None:
        self._parts = rule.suppress
        self._known: list[list[pa.Table]] = [[] for _ in rule.suppress]

    @property
    def parts(self) -> tuple[Suppression, ...]:
        return self._parts

    @property
    def columns(self) -> list[str]:
        """The columns that are needed of rows that were published before."""
        return list(dict.fromkeys(name for part in self._parts for name in part.groups))

    def add(self, rows: pa.Table) -> None:
        """Adds the groups of rows, without a check whether they were published before."""
        for number, each in enumerate(self._parts):
            self._known[number].append(_groups(rows, each.groups).select(each.groups))
            self._check(number)

    def take(self, number: int, rows: pa.Table) -> int:
        """Adds groups of rows; returns how many of them come twice, or were published before."""
        names = self._parts[number].groups
        new = rows.select(names)
        before = _join(self._known[number], new.schema)
        both = new if before is None else pa.concat_tables([_groups(before, names).select(names), new])
        again = _true(pc.greater(_groups(both, names).column(_COUNT), 1))
        self._known[number].append(_groups(new, names).select(names))
        self._check(number)
        return again

    def _check(self, number: int) -> None:
        count = sum(each.num_rows for each in self._known[number])
        if count > MAX_GROUPS:
            text = f"{plural(count, 'group')} are too many to compare"
            raise Refused(text, rule="portal-size", hint="begin another portal for later rows")


def _join(tables: list[pa.Table], schema: pa.Schema) -> pa.Table | None:
    return pa.concat_tables([table.cast(schema) for table in tables]) if tables else None


def _groups(rows: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Returns the groups by these columns, in which null is a value, with the number of rows of each."""
    found = rows.select(names).group_by(list(names), use_threads=False).aggregate([([], _COUNT)])
    return found.select([*names, _COUNT])


def _true(found: pa.ChunkedArray) -> int:
    return pc.sum(found).as_py() or 0
