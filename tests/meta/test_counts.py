"""``1 rows``: a count in a message goes through ``plural``, which knows of the one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from worlds.source_tree import nodes

TREE: Final = Path(__file__).parents[2]
ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd")
NOUNS: Final = (
    "blocks|datasets|days|entries|events|files|groups|lines|objects|peers|records|rows|slices|times|witnesses"
)
COUNTED: Final = re.compile(rf" ({NOUNS})\b")
MANY: Final = {
    "engines.spark.ingest.parse": "of so many records, as a share",
    "engines.spark.ingest.row_checks": "a branch for one",
    "engines.spark.ingest.json_text": "likewise",
    "engines.spark.analysis.walk": "a constant",
    "engines.spark.analysis.growth": "a factor of growth",
    "engines.spark.provenance.question": "a constant",
    "engines.spark.provenance.table_mode": "more than fifty million",
    "engines.spark.runtime.session": "a constant",
    "chain.data.footprint": "more than a constant",
    "chain.data.logical_hash": "likewise",
    "odfd.mirrors.repair": "likewise",
    "odfd.network.forks": "likewise",
    "chain.rules.transform": "two or more",
    "engines.spark.ingest.merge": "likewise",
    "odfd.network.node_names": "likewise",
    "odfd.services.resources.reading": "likewise",
    "odfd.services.maintenance.restore": "of so many, as a share",
    "odfd.ingest.correction": "likewise",
    "odfd.ingest.preparation": "likewise",
    "odfd.verify.columns": "likewise",
    "odfd.cli.commands.rewriting": "likewise, or a branch for one",
    "p2p.driver.replication": "a branch for one",
    "odfd.cli.lineage_text": "a dash in place of a count",
    "odfd.transform.replay": "records is the verb",
    "engines.spark.execution.tables": "SQL",
}


def counts(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, noun) of counts that are formatted as they are, right before a noun that says there are several."""
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            for value, text in zip(node.values, node.values[1:], strict=False):
                if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                    continue
                found = COUNTED.match(str(text.value))
                names = [each.id for each in ast.walk(value.value) if isinstance(each, ast.Name)]
                if found and not isinstance(value.value, ast.Constant) and not all(map(str.isupper, names)):
                    yield value.lineno, found[1]


def test_counts_agree_with_their_nouns() -> None:
    bare = [
        f"{name}:{line}: {noun}"
        for root in ROOTS
        for path in sorted((TREE / root).rglob("*.py"))
        if (name := ".".join(path.relative_to(TREE).with_suffix("").parts)) not in MANY
        for line, noun in counts(nodes(path))
    ]
    assert not bare, f"chain.wording.plural says 1 row, and 2 rows: {bare}"


def test_the_test_sees_a_count() -> None:
    text = "f\"{count} rows of {MOST} rows, {plural(n, 'row')} and {len(x):,} blocks\""
    assert [noun for _, noun in counts(ast.walk(ast.parse(text)))] == ["rows", "blocks"]
