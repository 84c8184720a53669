"""Lists what the value of each function of the pinned Spark depends on, and where it may be used.

``functions.tsv`` beside this file has one row for each function and table function of Spark's registry, and one for
each Catalyst expression that Spark writes by itself. What has no row is refused everywhere: a new Spark brings new
functions, and each has to be looked at before two honest nodes may disagree because of it. The engine's tests hold the
table to the registry both ways, and run each accepted row. Spec: docs/spec/engine-semantics.md#determinism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from pathlib import Path
from typing import Final

from chain.errors import Invalid

MAX_TABLE: Final = 1 << 20
"""Most bytes of the table."""
COLUMNS: Final = ("registry", "name", "depends on", "becomes", "result", "cost", "arguments", "why")
RESULTS: Final = frozenset({
    "boolean", "whole", "decimal", "double", "same", "text", "bytes", "time", "interval", "list", "map", "struct",
})  # fmt: skip
"""Kinds of values that a function may have; ``same``: floating point if an argument is."""


class Use(Flag):
    """The places in which a function may be used."""

    NOWHERE = 0
    QUERY = auto()
    """In a person's own query of data."""
    PREPROCESS = auto()
    """In a source's ``preprocess``: the same bytes give the same rows, but no validator repeats the computation."""
    TRANSFORM = auto()
    """In a transform, which every node must compute alike."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a function cannot be used, and what to use instead."""

    code: str
    reason: str
    instead: str


@dataclass(frozen=True, slots=True)
class Dependence:
    """Says what a function's value depends on: where the function may be used, and the message elsewhere."""

    uses: Use
    denial: Denial | None = None


_LOOK: Final = Use.QUERY
_AT_HOME: Final = Use.QUERY | Use.PREPROCESS
_ANYWHERE: Final = _AT_HOME | Use.TRANSFORM
_LISTED: Final = "the order of its elements is not determined"
DEPENDENCES: Final[Mapping[str, Dependence]] = {
    "arguments": Dependence(_ANYWHERE),
    "group": Dependence(_ANYWHERE),
    "exact": Dependence(_ANYWHERE),
    "frame": Dependence(_ANYWHERE),
    "pane": Dependence(_ANYWHERE),
    "clock": Dependence(_LOOK, Denial("not-data", "its value is not in the data", "use a column, such as event_time")),
    "session": Dependence(
        _LOOK, Denial("not-data", "it depends on the configuration of the engine", "write the value itself")
    ),
    "layout": Dependence(
        _LOOK,
        Denial("layout-dependent", "it depends on how rows are spread over machines", "use hash() of columns"),
    ),
    "ties": Dependence(
        _LOOK, Denial("arbitrary-row", "which row it takes is not determined", "min(x), or max(struct(y, x)).x")
    ),
    "position": Dependence(
        _LOOK, Denial("arbitrary-row", "which row it takes is not determined", "min(x), or max(struct(y, x)).x")
    ),
    "list": Dependence(
        _LOOK,
        Denial(
            "arbitrary-order",
            _LISTED,
            "use array_sort(collect_list(x)), x cast to a decimal if it is floating point",
        ),
    ),
    "listing": Dependence(_LOOK, Denial("arbitrary-order", _LISTED, "use listagg(x, ',') within group (order by x)")),
    "merging": Dependence(
        _LOOK,
        Denial("layout-dependent", "its answer depends on the order of merging", "use percentile or count"),
    ),
    "adding": Dependence(
        _AT_HOME,
        Denial(
            "float-aggregate",
            "adds in floating point, whatever it is given: the result depends on the order of the rows",
            "sum(x * x * x), sum(x * x), sum(x) and count(x), over decimals, and compute from them",
        ),
    ),
    "processor": Dependence(
        _AT_HOME,
        Denial("platform-dependent", "its last digits depend on the processor", "compute it where it is displayed"),
    ),
    "java": Dependence(
        _AT_HOME,
        Denial("platform-dependent", "it changes with the Java that runs Spark", "split, from_json, or regexp_extract"),
    ),
    "collation": Dependence(
        _LOOK,
        Denial("collation", "which texts it takes for equal is arbitrary, and changes with its tables", "use lower(x)"),
    ),
    "type": Dependence(
        _AT_HOME,
        Denial("foreign-type", "it makes or takes a type that no dataset has", "use texts, numbers and timestamps"),
    ),
    "fails": Dependence(
        _AT_HOME, Denial("always-fails", "a transaction that fails fails for ever", "leave such rows out: where …")
    ),
    "untried": Dependence(
        _AT_HOME,
        Denial(
            "unknown-function",
            "it is not among the functions known to give every node the same answer",
            "use another function, or compute it where it is displayed",
        ),
    ),
    "rows": Dependence(
        _AT_HOME, Denial("not-data", "it makes rows that are in no input", "LATERAL VIEW makes rows of lists")
    ),
    "code": Dependence(Use.NOWHERE, Denial("opaque-function", "what it does cannot be known", "use functions of SQL")),
    "outside": Dependence(
        Use.NOWHERE, Denial("opaque-function", "it reads files or classes beside the query", "use functions of SQL")
    ),
    "judging": Dependence(
        Use.NOWHERE, Denial("opaque-function", "it is computed while a query is judged", "write the schema itself")
    ),
    "secret": Dependence(
        Use.NOWHERE,
        Denial("opaque-function", "its key would be part of the query, which is published", "encrypt the file instead"),
    ),
}


@dataclass(frozen=True, slots=True)
class Function:
    """A row of the table of functions."""

    registry: str
    """``function``, ``table`` (functions to select from) or ``expression`` (classes that Spark adds by itself)."""
    name: str
    depends: str
    becomes: frozenset[str]
    """Catalyst classes that stand for it in an analysed plan."""
    results: frozenset[str]
    """Kinds of values of its result; empty: those of its arguments, or not known."""
    costs: frozenset[str]
    """``heavy``: time or result can be far larger than the arguments, so it is not computed over constants alone;
    ``written-out``: the analyser expands it to other functions, in which an argument may occur several times."""
    arguments: tuple[str, ...]
    """Argument types that it was tried with: SQL, in which names of types stand for columns."""
    why: str

    @property
    def uses(self) -> Use:
        return DEPENDENCES[self.depends].uses

    @property
    def denial(self) -> Denial | None:
        return DEPENDENCES[self.depends].denial


def read_table(text: str) -> tuple[Function, ...]:
    """Reads the rows of a table. Raises Invalid for a malformed one."""
    if len(text) > MAX_TABLE:
        raise Invalid("the table of functions is too large", rule="functions")
    head, *lines = text.splitlines()
    if tuple(head.split("\t")) != COLUMNS:
        raise Invalid("the table of functions has other columns", rule="functions")
    return tuple(_row(line) for line in lines)


def _row(line: str) -> Function:
    parts = line.split("\t")
    if len(parts) != len(COLUMNS) or parts[2] not in DEPENDENCES or not RESULTS.issuperset(parts[4].split()):
        raise Invalid(f"not a row of the table of functions: {line[:80]}", rule="functions")
    registry, name, depends, becomes, results, costs, arguments, why = parts
    return Function(
        registry, name, depends, frozenset(becomes.split()), frozenset(results.split()), frozenset(costs.split()),
        tuple(arguments.split(" ; ")) if arguments else (), why,
    )  # fmt: skip


TABLE: Final = read_table(Path(__file__).with_name("functions.tsv").read_text(encoding="utf-8"))
FUNCTIONS: Final[Mapping[str, Function]] = {row.name: row for row in TABLE if row.registry == "function"}
TABLE_FUNCTIONS: Final[Mapping[str, Function]] = {row.name: row for row in TABLE if row.registry == "table"}


def _classes(wanted: Callable[[Function], bool]) -> frozenset[str]:
    return frozenset(kind for row in TABLE if wanted(row) for kind in row.becomes)


def _kinds() -> Iterator[tuple[str, frozenset[str]]]:
    """Yields for each class the kinds of values of all functions that become it; none if one's are not known."""
    found: dict[str, list[frozenset[str]]] = {}
    for row in TABLE:
        for kind in row.becomes:
            found.setdefault(kind, []).append(row.results)
    for kind, results in found.items():
        yield kind, frozenset().union(*results) if all(results) else frozenset()


DENIALS: Final[Mapping[str, tuple[Use, Denial]]] = {
    kind: (row.uses, row.denial) for row in TABLE if row.denial is not None for kind in row.becomes
}
"""Expressions that are not allowed everywhere -> the uses in which they are, and the message for others."""
ALLOWED: Final[Mapping[Use, frozenset[str]]] = {
    Use.TRANSFORM: _classes(lambda row: Use.TRANSFORM in row.uses),
    Use.PREPROCESS: _classes(lambda row: Use.PREPROCESS in row.uses),
}
"""Expressions that are known to give the same everywhere, by use; all others are refused."""
ORDER_FREE: Final = _classes(lambda row: row.depends == "group")
"""Aggregates that give the same for floating point inputs in any order."""
BY_ORDER: Final = _classes(lambda row: row.depends == "position")
"""Aggregates allowed in OVER, where ORDER BY can decide which row they take."""
INTEGER_IN_DOUBLE: Final = frozenset({"Average", "TryAverage"})
"""Aggregates that Spark adds up in floating point even for whole numbers, inexactly beyond 2^53."""
HOLDS_ITS_ARGUMENTS: Final = frozenset({
    "Alias", "CreateArray", "CreateNamedStruct", "CaseWhen", "If", "Coalesce", "Nvl", "Nvl2", "NullIf", "KnownNullable",
    "KnownNotNull", "ArrayRepeat",
})  # fmt: skip
"""Functions whose value is one of their arguments, or contains them."""
_RESULTS: Final = dict(_kinds())
_NESTED: Final = frozenset({"list", "map", "struct"})
MAKES_MAP: Final = frozenset(kind for kind, results in _RESULTS.items() if results == {"map"})
MAKES_FLOAT: Final = frozenset(kind for kind, results in _RESULTS.items() if "double" in results)
"""Functions whose result is floating point (or may hold it) though no argument is."""
NEVER_FLOAT: Final = frozenset(
    kind for kind, results in _RESULTS.items() if results and not results & {"double", "same", *_NESTED}
)
"""Functions whose result is not floating point though an argument may be."""
NOT_TEXT: Final = frozenset(kind for kind, results in _RESULTS.items() if results and not results & {"text", *_NESTED})
"""Functions whose result is never a text that could be read as a time of day, and holds none."""
NESTED: Final = frozenset(kind for kind, results in _RESULTS.items() if results and results <= _NESTED)
"""Functions whose result is a list, a structure or a map."""
BYTES: Final = frozenset(kind for kind, results in _RESULTS.items() if results == {"bytes"})
"""Functions whose result is binary."""
PASSES_BYTES: Final = frozenset(kind for kind, results in _RESULTS.items() if "bytes" in results) - BYTES
"""Functions whose result is binary if an argument is."""
SUBQUERIES: Final = frozenset({
    "ScalarSubquery", "Exists", "ListQuery", "InSubquery", "LateralSubquery", "FunctionTableSubqueryArgument",
})  # fmt: skip
