"""The table of functions by itself: what is read, what follows from it, and that its document shows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chain.errors import Invalid
from engines.spark.analysis import functions
from engines.spark.analysis.functions import (
    ALLOWED,
    COLUMNS,
    DENIALS,
    DEPENDENCES,
    FUNCTIONS,
    MAX_TABLE,
    NEVER_FLOAT,
    NOT_TEXT,
    TABLE,
    Use,
    read_table,
)  # fmt: skip

DOCUMENT = Path(__file__).parents[4] / "docs" / "functions.md"
HEAD = "\t".join(COLUMNS)
PREFACE = """\
# Functions

This table says what each function of the pinned Spark depends on, and where it may be used: **T** in transforms, **P**
in the preprocess queries of a source, **Q** in queries that a person asks (`odfctl query`). A function that is not in
this table runs nowhere. The document is generated from `engines/spark/analysis/functions.tsv`. A test compares the
table with that file, with the registry of Spark, and with the behaviour of the functions: accepted ones, except
aggregates and those that make rows, are run with each of their types over other orders of rows, partitions, slices,
locales and zones, and against results that another process recorded on another day.

Types: `whole` is tinyint, smallint, int and bigint; `number` those and float, double, decimal; `local` a timestamp
without a zone; `days` and `months` the two kinds of intervals; `ints`, `texts`, `doubles` lists; `any` all of them; `T`
the same type throughout. Other types are written out. A function that makes long values needs a bound of the
length: `repeat(k, least(v, 1000))`. Operators such as `+` have a row too.

"""
USES = {"T": Use.TRANSFORM, "P": Use.PREPROCESS, "Q": Use.QUERY}


def rendered():
    lines = ["| function | where | depends on | tried with | why, or why not |", "|---|---|---|---|---|"]
    for row in (row for row in TABLE if row.registry != "expression"):
        where = "".join(letter for letter, use in USES.items() if use in row.uses) or "nowhere"
        shown = "<br>".join(row.arguments[:8]).replace("|", " \\| ")
        why = row.why if row.denial is None else f"{row.why}. Instead: {row.denial.instead}"
        name = row.name.replace("|", "\\|") + (" (from)" if row.registry == "table" else "")
        lines.append(f"| `{name}` | {where} | {row.depends} | {shown} | {why} |")
    return PREFACE + "\n".join(lines) + "\n"


def test_the_document_shows_the_table():
    if "ODF_RECORD" in os.environ:
        DOCUMENT.write_text(rendered(), encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == rendered(), "ODF_RECORD=1 writes it anew"


def test_each_row_says_why_and_each_accepted_one_what_it_was_tried_with():
    assert not [row.name for row in TABLE if not row.why]
    assert not [row.name for row in FUNCTIONS.values() if row.denial is None and not row.arguments]
    assert len({(row.registry, row.name) for row in TABLE}) == len(TABLE)


def test_rows_that_become_one_class_are_judged_alike():
    judged = {}
    for row in TABLE:
        for kind in row.becomes:
            judged.setdefault(kind, set()).add(row.depends)
    assert not {kind: depends for kind, depends in judged.items() if len(depends) > 1}
    assert not ALLOWED[Use.TRANSFORM] & set(DENIALS)
    assert ALLOWED[Use.TRANSFORM] < ALLOWED[Use.PREPROCESS]


def test_what_follows_from_the_results():
    assert {"Length", "Upper", "EqualTo", "DateAdd"} <= NEVER_FLOAT
    assert not {"Add", "If", "ArrayMax", "JsonToStructs", "Sum", "ZeroIfNull"} & NEVER_FLOAT
    assert {"Add", "DateAdd", "Length"} <= NOT_TEXT
    assert not {"If", "Upper", "JsonToStructs", "GetJsonObject", "ArrayMax"} & NOT_TEXT


@pytest.mark.parametrize(
    "text",
    ["", "name\n", f"{HEAD}\nfunction\tx\n", f"{HEAD}\n" + "\t".join(["function", "x", "moon", *[""] * 5]),
     f"{HEAD}\n" + "\t".join(["function", "x", "clock", "X", "colour", *[""] * 3]), "x" * (MAX_TABLE + 1)],
)  # fmt: skip
def test_what_is_no_table_is_refused(text):
    with pytest.raises(Invalid):
        read_table(text + "\n")


def test_a_row_is_read_whole():
    (row,) = read_table(f"{HEAD}\nfunction\tx\tclock\tA B\ttext list\theavy\tint, int ; 'a;b'\tbecause\n")
    assert row.becomes == {"A", "B"}
    assert row.results == {"text", "list"}
    assert row.arguments == ("int, int", "'a;b'")
    assert row.uses is Use.QUERY
    assert row.denial is DEPENDENCES["clock"].denial
    assert functions.TABLE_FUNCTIONS["python_worker_logs"].uses is Use.NOWHERE
