"""Rewrites a query over a collection as one over its shards: each is an input, and a first step unites them.

So a transform over shards is plain ODF, which others verify without knowing about shards. The step is recognised by its
text, so that the shards of another rendition can replace these. Pure. Spec: docs/spec/collections.md#shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from chain.errors import Refused
from chain.model.events import SetTransform, TransformInput
from chain.model.source import SqlQueryStep, TransformSql


class Logical(NamedTuple):
    """An input of a query as its author knows it: an alias, and the chains that have its rows."""

    alias: str
    shards: tuple[str, ...]


def over(transform: SetTransform, old: Sequence[str], new: Sequence[str]) -> SetTransform:
    """Returns the query with the chains ``new`` in place of ``old``, each all shards of a rendition.

    Raises Refused for a query that reads only some shards.
    """
    inputs, steps = _split(transform)
    found = []
    for input_ in inputs:
        if set(input_.shards) & set(old) and input_.shards != tuple(old):
            raise Refused(
                f"{input_.alias} is a part of the {len(old)} shards of a collection, which hand over together",
                rule="shard-input",
                hint="derive from the collection by its name",
            )
        found.append(Logical(input_.alias, tuple(new)) if input_.shards == tuple(old) else input_)
    return _unite(transform, found, steps)


def inputs_of(transform: SetTransform) -> list[Logical]:
    """Returns the inputs of a query as its author knows them, in order."""
    return _split(transform)[0]


def _split(transform: SetTransform) -> tuple[list[Logical], tuple[SqlQueryStep, ...]]:
    """Returns the inputs as the author knows them, and the steps that the author wrote."""
    said = transform.transform
    steps = said.queries or (SqlQueryStep(query=said.query or ""),)
    unions = {step.alias: step.query for step in steps if step.alias is not None}
    found: list[Logical] = []
    aliases = [input_.alias or input_.dataset_ref for input_ in transform.inputs]
    refs = [input_.dataset_ref for input_ in transform.inputs]
    place, removed = 0, set()
    while place < len(refs):
        alias, count = aliases[place].removesuffix(_part("", 0)), 0
        while place + count < len(refs) and aliases[place + count] == _part(alias, count):
            count += 1
        if count > 1 and unions.get(alias) == _union(alias, count):
            found.append(Logical(alias, tuple(refs[place : place + count])))
            removed.add(alias)
            place += count
        else:
            found.append(Logical(aliases[place], (refs[place],)))
            place += 1
    return found, tuple(step for step in steps if step.alias not in removed)


def _unite(transform: SetTransform, inputs: Sequence[Logical], steps: tuple[SqlQueryStep, ...]) -> SetTransform:
    named: list[TransformInput] = []
    unions: list[SqlQueryStep] = []
    tables = {table.name for table in transform.transform.temporal_tables or ()}
    for input_ in inputs:
        count = len(input_.shards)
        if count == 1:
            named.append(TransformInput(dataset_ref=input_.shards[0], alias=input_.alias))
            continue
        if input_.alias in tables:
            raise Refused(
                f"{input_.alias} is read by its newest rows of a time, and has {count} shards",
                rule="shard-temporal",
                hint="keep it in one shard",
            )
        named += [
            TransformInput(dataset_ref=shard, alias=_part(input_.alias, place))
            for place, shard in enumerate(input_.shards)
        ]
        unions.append(SqlQueryStep(alias=input_.alias, query=_union(input_.alias, count)))
    said: TransformSql = transform.transform
    if unions or said.queries is not None:
        said = msgspec.structs.replace(said, query=None, queries=(*unions, *steps))
    return msgspec.structs.replace(transform, inputs=tuple(named), transform=said)


def _part(alias: str, place: int) -> str:
    return f"{alias}__shard_{place}"


def _union(alias: str, count: int) -> str:
    parts = (_quote(_part(alias, place)) for place in range(count))
    return " UNION ALL ".join(f"SELECT * FROM {part}" for part in parts)  # noqa: S608  it is quoted


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
