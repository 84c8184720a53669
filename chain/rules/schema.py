"""Checks the declared schema: it precedes data, and old slices stay readable under it. Spec: DataSchema."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.errors import Invalid
from chain.libraries import np
from chain.model.block import Block
from chain.model.changelog import says_changelog
from chain.model.defaults import same, spelled_out
from chain.model.events import AddData, ExecuteTransform, SetDataSchema
from chain.model.schema import (
    MAX_COLUMNS,
    MAX_NAME,
    DataField,
    DataSchema,
    DataType,
    List,
    Map,
    Option,
    Struct,
    TimeUnit,
)
from chain.repeats import repeated
from chain.rules.columns import Mask, Run
from chain.rules.rule import Binds, Rule, Violation
from chain.state import ChainState
from chain.wording import listed


@dataclass(frozen=True, slots=True)
class Incompatibility:
    message: str
    expected: str
    actual: str


def incompatibilities(
    old: Sequence[DataField], new: Sequence[DataField], *, upgrade: bool = False, path: str = ""
) -> Iterator[Incompatibility]:
    """Yields every change from ``old`` to ``new`` that readers of old data could not bridge, with the column's path.

    ``upgrade``: ``old`` comes from the legacy form, where Arrow decided what may be null; optionality may change then.
    """
    theirs = {each.name: each for each in new}
    known = {each.name for each in old}
    for field in old:
        place = f"{path}{field.name}"
        if field.name not in theirs:
            yield Incompatibility(f"column {place!r} is removed", shown(field.type), "nothing")
        else:
            yield from _type_changes(field.type, theirs[field.name].type, place, upgrade)
    for field in new:
        if field.name not in known and not isinstance(field.type, Option):
            place = f"{path}{field.name}"
            yield Incompatibility(
                f"the new column {place!r} is required", f"Option<{shown(field.type)}>", shown(field.type)
            )


def _type_changes(old: DataType, new: DataType, place: str, upgrade: bool) -> Iterator[Incompatibility]:
    if upgrade:
        old, new = _required(old), _required(new)
    if isinstance(old, Option) and isinstance(new, Option):
        yield from _type_changes(old.inner, new.inner, place, upgrade)
    elif isinstance(old, Struct) and isinstance(new, Struct):
        yield from incompatibilities(old.fields, new.fields, upgrade=upgrade, path=f"{place}.")
    elif isinstance(old, List) and isinstance(new, List) and old.fixed_length == new.fixed_length:
        yield from _type_changes(old.item_type, new.item_type, f"{place}[]", upgrade)
    elif not same(old, new):
        what = "type" if isinstance(old, Option) == isinstance(new, Option) else "optionality"
        yield Incompatibility(f"column {place!r} changes its {what}", shown(old), shown(new))


def _required(data_type: DataType) -> DataType:
    return _required(data_type.inner) if isinstance(data_type, Option) else data_type


def shown(data_type: DataType) -> str:
    """Writes a type for people: ``Option<List<Int32>>``, ``Timestamp<Nanosecond, UTC>``."""
    match data_type:
        case Option(inner=inner):
            return f"Option<{shown(inner)}>"
        case List(item_type=item):
            return f"List<{shown(item)}>"
        case Struct(fields=fields):
            return f"Struct<{', '.join(f'{field.name}: {shown(field.type)}' for field in fields)}>"
        case Map(key_type=key, value_type=value):
            return f"Map<{shown(key)}, {shown(value)}>"
    parameters = [each for each in msgspec.structs.astuple(spelled_out(data_type)) if each is not None]
    what = ", ".join(
        str(parameter.value) if isinstance(parameter, TimeUnit) else str(parameter) for parameter in parameters
    )
    return type(data_type).__name__ + (f"<{what}>" if what else "")


class SchemaBeforeData(Rule):
    """The schema is declared before the first rows."""

    name = "schema-before-data"
    clause = "SetDataSchema; must be present before adding data"
    concerns = (AddData, ExecuteTransform)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        has_data = isinstance(event, AddData | ExecuteTransform) and event.new_data is not None
        if has_data and state.schema is None and not state.may_hold(SetDataSchema):
            yield self.broken("data before any SetDataSchema", hint="declare the schema first")

    def doubts(self, run: Run) -> Mask:
        undeclared = run.state.schema is None and not run.state.may_hold(SetDataSchema)
        return run.has("event.new_data") if undeclared else np.zeros(run.size, np.bool_)


class SchemaIsSaid(Rule):
    """SetDataSchema holds a schema, in exactly one of its two forms."""

    name = "schema-present"
    clause = "SetDataSchema.schema, rawArrowSchema"
    concerns = (SetDataSchema,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if not isinstance(event, SetDataSchema) or block.unknown_fields:
            return
        if (event.schema is None) == (event.raw_arrow_schema is None):
            word = "both" if event.schema else "neither"
            yield self.broken("SetDataSchema holds one form of schema", expected="one", actual=word)


class SchemaChanges(Rule):
    """A schema declared again differs from the one in force."""

    name = "schema-no-op"
    clause = "SetDataSchema; New schema is identical to the current"
    concerns = (SetDataSchema,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        event = block.event
        if isinstance(event, SetDataSchema) and event.schema is not None and same(event, state.schema):
            yield self.broken("the schema is identical to the one in force", hint="write no block")


class _SchemaRule(Rule):
    """A rule on a schema that is declared in ODF types."""

    concerns = (SetDataSchema,)

    def check(self, state: ChainState, block: Block) -> Iterator[Violation]:
        if isinstance(block.event, SetDataSchema) and block.event.schema is not None:
            yield from self.check_schema(state, block.event.schema)

    @abstractmethod
    def check_schema(self, state: ChainState, schema: DataSchema) -> Iterator[Violation]:
        """Does ``check`` for the schema of the block."""


class SchemaStaysCompatible(_SchemaRule):
    """Attributes and order may change and optional fields be added, at any depth; nothing else.

    After a schema in the legacy form, in which Arrow decided nullability, optionality may change too.
    """

    name = "schema-compatible"
    clause = "SetDataSchema; schema evolution"

    def check_schema(self, state: ChainState, schema: DataSchema) -> Iterator[Violation]:
        current = state.schema
        if current is None:
            return
        try:
            before = schema_of(current)
        except Invalid as fault:
            yield self.broken(f"the legacy schema in force cannot be read: {fault}")
            return
        for incompatibility in incompatibilities(before.fields, schema.fields, upgrade=current.schema is None):
            yield self.broken(incompatibility.message, expected=incompatibility.expected, actual=incompatibility.actual)


class SystemColumnsAreThere(_SchemaRule):
    """A schema has all system columns. The reference only warns."""

    name = "schema-system-columns"
    clause = "DatasetVocabulary; system columns"
    binds = Binds.AUTHORS

    def check_schema(self, state: ChainState, schema: DataSchema) -> Iterator[Violation]:
        names = [field.name for field in schema.fields]
        vocab = state.vocab
        for name in (vocab.offset, vocab.operation_type, vocab.system_time, vocab.event_time):
            if name not in names:
                yield self.broken(f"the system column {name!r} is missing", actual=listed(names))


class ColumnsAreDistinct(_SchemaRule):
    """Columns have distinct names."""

    name = "schema-columns-distinct"
    clause = "DataSchema.fields"
    binds = Binds.AUTHORS

    def check_schema(self, state: ChainState, schema: DataSchema) -> Iterator[Violation]:
        if twice := repeated(field.name for field in schema.fields):
            yield self.broken(f"columns occur more than once: {listed(twice)}")


class SchemaIsBounded(_SchemaRule):
    """A schema has at most 10,000 columns and members of structs, with names of at most 1,024 characters."""

    name = "schema-columns"
    clause = "ours: readers, and engines, plan in proportion to columns"
    binds = Binds.AUTHORS

    def check_schema(self, state: ChainState, schema: DataSchema) -> Iterator[Violation]:
        names = list(_names(schema.fields))
        if len(names) > MAX_COLUMNS:
            hint = "leave columns out in preprocess, or gather some in a list or a map"
            yield self.broken(f"a schema of {len(names):,} columns", expected=MAX_COLUMNS, actual=len(names), hint=hint)
        longest = max(names, key=len, default="")
        if len(longest) > MAX_NAME:
            what = f"the name {listed([longest])} has {len(longest):,} characters"
            yield self.broken(what, expected=MAX_NAME, actual=len(longest), hint="rename it in preprocess")


def _names(fields: Sequence[DataField]) -> Iterator[str]:
    """Yields the names of columns and of members of structs, at all depths."""
    waiting = [field.type for field in fields]
    yield from (field.name for field in fields)
    while waiting:
        match waiting.pop():
            case Option(inner=inner) | List(item_type=inner):
                waiting.append(inner)
            case Map(key_type=key, value_type=value):
                waiting += key, value
            case Struct(fields=members):
                yield from (member.name for member in members)
                waiting += (member.type for member in members)


class ChangelogStays(_SchemaRule):
    """A dataset whose rows can be retracted stays a changelog, since its history may hold retracted rows."""

    name = "schema-changelog-stays"
    clause = "ours: the schema attribute w3id.org/odfd/changelog"
    binds = Binds.AUTHORS

    def check_schema(self, state: ChainState, schema: DataSchema) -> Iterator[Violation]:
        current = state.schema
        if current is not None and says_changelog(current.schema) is True and says_changelog(schema) is not True:
            yield self.broken(
                "the schema does not say any more that rows can be corrected and retracted",
                hint="keep its attribute w3id.org/odfd/changelog: true",
            )
