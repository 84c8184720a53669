"""Reads Sources for pulls: each as the event that a chain would hold, with the values it names, decrypted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from chain.codec.yaml_tree import parse
from chain.errors import Environment, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import SetPollingSource
from chain.model.source import traits
from chain.rules.snapshot import normalise_event
from chain.state import load_state
from chain.wording import plural
from odfd.access.relations import Action
from odfd.control import wire
from odfd.datasets.creation import with_columns
from odfd.ingest.acceptance import check_source
from odfd.ingest.driver import GivenSource, IngestDependencies, second_source
from odfd.ingest.endpoint import STATE, EndpointFetch, RestEndpoint, position
from odfd.ingest.settings import IngestSettings
from odfd.ingest.source_manifest import ConfigValue, config_value, endpoint_of, polling_source
from odfd.ingest.templates import redact
from odfd.resources import records
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.manifest import read_resource
from odfd.resources.resource import Resource
from odfd.resources.sets import binding
from odfd.resources.status import UNRESOLVED
from odfd.resources.store import ResourceStore
from odfd.services.resources.types import TYPES
from odfd.store import collections
from odfd.store.captures import Capture
from odfd.store.directory import StateDirectory

TYPE: Final = "Source"
TAKEN: Final = "source"
"""Kind of the records that say from which Source a collection takes, by the collection's id."""
PARSED: Final = 256
"""Sources that are kept as they were parsed."""


class OpenedSource(NamedTuple):
    """A Source that can be fetched from, or to which records are pushed."""

    id: str
    name: str
    polled: SetPollingSource
    values: Mapping[str, str]
    """The values that its config names; they are never shown."""
    endpoint: RestEndpoint | None
    """The endpoint to which records are pushed; ``None`` if they are fetched."""
    keeps_raw: bool


class _Taken(msgspec.Struct, frozen=True):
    """From which Source a collection takes, by its id, and the name that the chains have for it.

    Chains are read at other nodes, where a Source has another id; here it may be renamed, and another have its name.
    """

    source: str
    name: str


class SourceReader:
    """Reads the Sources of one node. Blocking."""

    def __init__(self, home: StateDirectory) -> None:
        self._home = home

    def open(self, ref: str) -> OpenedSource:
        """Returns a Source by name or id, with its values.

        Raises NotFound for either; Refused if its account may not read a set; Environment for a lost key.
        """
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            found = store.find_any(TYPE, ref)
            if found is None:
                text = f"there is no {TYPE} {ref[:120]!r}"
                raise NotFound(text, rule=UNRESOLVED, hint="odfctl get sources lists them")
            wanted = {name: config_value(str(text)) for name, text in (found.spec.get("config") or {}).items()}
            values = {name: self._value(store, found, each) for name, each in wanted.items()}
        polled, endpoint = _read(found)
        return OpenedSource(found.id, found.name, polled, values, endpoint, bool(found.spec.get("keepRaw")))

    def open_given(self, ref: str, dataset: DatasetId) -> tuple[GivenSource, Mapping[str, str]]:
        """Returns a Source for one dataset, and its values. Raises as ``open``."""
        opened, spool = self.open(ref), self._home.spool
        singly = traits(opened.polled.merge).whole_state
        fetched = EndpointFetch(opened.id, dataset, singly, spool.after, spool.reads)
        fetch = None if opened.endpoint is None else fetched.fetch
        given = GivenSource(
            id=opened.id, dataset=dataset, name=self._name_in_chain(opened, dataset), polled=opened.polled, fetch=fetch,
            keeps_raw=opened.keeps_raw,
        )  # fmt: skip
        return given, opened.values

    def bind(self, given: GivenSource) -> None:
        """Notes, before anything is committed, which Source a dataset takes from."""
        said = msgspec.json.encode(_Taken(given.id, given.name))
        with self._home.database.read() as connection:
            key = str(collections.of(connection, given.dataset).id)
            known = records.get(connection, TAKEN, key)
        if known is None or known.body != said:
            with self._home.database.write() as connection:
                records.put(connection, TAKEN, key, said, Instant(0))

    def _name_in_chain(self, opened: OpenedSource, dataset: DatasetId) -> str:
        """Returns the name that a chain has, or will have, for a Source.

        Raises Refused if it has that name for another one, which is here.
        """
        seen = load_state(self._home.chains.chain(dataset)).source_state
        with self._home.database.read() as connection:
            found = records.get(connection, TAKEN, str(collections.of(connection, dataset).id))
            bound = None if found is None else msgspec.json.decode(found.body, type=_Taken)
            if seen is None or bound is None or bound.name != seen.source_name:  # nothing was committed of it
                return opened.name
            other = None if bound.source == opened.id else ResourceStore(connection).get(bound.source)
        if other is not None:
            raise second_source(f"the Source {other.name}", opened.name)
        return bound.name if bound.source == opened.id else opened.name

    def decoding(self, deps: IngestDependencies, dataset: DatasetId, capture: Capture) -> IngestDependencies:
        """Returns what reads captured bytes again: as the Source says now from which they were. Raises as ``open``."""
        if not capture.given:
            return deps
        given, values = self.open_given(capture.given, dataset)
        if capture.label is not None:
            given = msgspec.structs.replace(given, name=capture.label.source_name)  # its name at that time
        return replace(deps, given=given, settings=msgspec.structs.replace(deps.settings, variables=values))

    def note_taken(self, given: GivenSource) -> None:
        """Records how far a dataset has taken what was pushed to a Source, which then keeps it for others only.

        The Source is not looked up again: since the ingest began it may have got another name, or been deleted.
        """
        seen = load_state(self._home.chains.chain(given.dataset)).source_state
        if given.fetch is not None and seen is not None and seen.kind == STATE:
            self._home.spool.reads(given.id, given.dataset, position(seen.value, given.id))

    def find_meant(self, by: str, key: str) -> str:
        """Returns the id of the Source that a resource, by its id, takes from. Raises NotFound, Refused."""
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            return self._home.uses.find_meant(store, store.get(by), key, Action.WRITE).id

    def check_taken(self, by: str, key: str, dataset: DatasetId) -> None:
        """Raises the fault that keeps a dataset from taking from the Source to which a resource refers."""
        given, _ = self.open_given(self.find_meant(by, key), dataset)
        given.over(load_state(self._home.chains.chain(dataset)))

    def check(self, ref: str, settings: IngestSettings) -> None:
        """Raises the fault that would keep a Source from being fetched, without a fetch."""
        opened = self.open(ref)
        known = msgspec.structs.replace(settings, variables=opened.values)
        with redact(opened.values):
            refused = check_source(opened.polled, known, is_fetched=opened.endpoint is None)
            if refused is not None:
                raise refused[1]

    def forget(self, source: str) -> None:
        """Deletes what was pushed to a deleted Source."""
        self._home.spool.remove(source)

    def _value(self, store: ResourceStore, source: Resource, wanted: ConfigValue) -> str:
        """Returns a value of the set that a Source was resolved to, whatever is named so now."""
        held = self._home.uses.find_meant(store, source, wanted.set)
        values = held.spec[_FIELDS[held.type]]
        if wanted.key not in values:
            text = f"there is no {held.type}:{held.name}#{wanted.key}"
            raise NotFound(text, rule=UNRESOLVED, hint=f"apply the {held.type} with it")
        value = values[wanted.key]
        if held.type == "VariableSet":
            return str(value)
        return self._home.secrets.open(value["value"], (binding(held.id, wanted.key),)).reveal()


def check_one(request: wire.PullRequest) -> None:
    """Raises Invalid for a request that states a Source or a time and names not exactly one dataset."""
    if request.source is not None and (len(request.refs) != 1 or request.recursive or request.repair):
        raise Invalid("a Source is for one dataset", rule="pull-source", hint="odfctl pull NAME --source SOURCE")
    if request.time is not None and (len(request.refs) != 1 or request.recursive or request.repair):
        raise Invalid("a time is for one dataset", rule="pull-time", hint="odfctl pull NAME --time TIME")


_FIELDS: Final = {"VariableSet": "variables", "SecretSet": "secrets"}


def _read(found: Resource) -> tuple[SetPollingSource, RestEndpoint | None]:
    return _parse(json.dumps({"$schema": TYPE, "headers": {"name": found.name}, "spec": found.spec}), found.name)


@lru_cache(maxsize=PARSED)
def _parse(text: str, name: str) -> tuple[SetPollingSource, RestEndpoint | None]:
    """Parses a Source; that took more than all else when a small body was pushed."""
    (node,) = parse(text, name)
    draft, mistakes = read_resource(node, name, TYPES)
    if draft is None:
        why = f"{TYPE} {name} cannot be read: {mistakes[0].message}"
        raise Environment(why, rule="source", hint="apply it again")
    event = with_columns(normalise_event(polling_source(draft.spec)))
    assert isinstance(event, SetPollingSource)
    return event, endpoint_of(draft.spec)


class SourceController(Controller):
    """Reports whether a Source could be fetched from, without fetching: its values are here, and settings allow it."""

    type = TYPE

    def __init__(self, home: StateDirectory, settings: Callable[[], IngestSettings]) -> None:
        self._home, self._sources, self._settings = home, SourceReader(home), settings

    def check(self, before: Resource, after: Resource | None) -> None:
        waiting = self._home.spool.waiting(before.id)
        if after is None and waiting.pushes:
            text = f"{plural(waiting.records, 'record')} that were pushed to {before.name} wait"
            hint = f"odfctl pull DATASET --source {before.name} takes them; or odfctl source drop {before.name} --all"
            raise Refused(text, rule="source-waits", hint=hint)

    def observe(self, resource: Resource) -> ObservedState:
        self._sources.check(resource.id, self._settings())
        return ObservedState()

    def finalize(self, resource: Resource) -> None:
        self._sources.forget(resource.id)
