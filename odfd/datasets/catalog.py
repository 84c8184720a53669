"""Stores the local names of datasets, whose identity is their did.

A dataset resource is stored as a collection, of one rendition with one shard, so that its format allows several.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from chain.errors import Invalid, NotFound
from chain.ids import DID_ODF, DatasetId, DatasetName, parse_own_name
from chain.instant import Instant
from odfd.resources.references import reference_key
from odfd.resources.store import Resource, Resources

KIND: Final = "dataset"
_TYPE: Final = "Dataset"


class Rendition(msgspec.Struct, frozen=True, rename="camel"):
    """One derivation of a collection's history: the chains of its shards."""

    shards: tuple[str, ...]


class DatasetEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset in the catalogue: its name, its id, and when it got here."""

    name: DatasetName
    id: DatasetId
    created_at: Instant


class _Spec(msgspec.Struct, frozen=True):
    renditions: tuple[Rendition, ...]
    created_at: Instant | None = None
    """When the dataset was created, if that was under an earlier name; ``None`` if it always had this name."""


class Catalog:
    """Looks up and changes the names of datasets, over the resources of one connection."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def entries(self) -> Sequence[DatasetEntry]:
        return [_entry(resource) for resource in self._resources.all(KIND)]

    def resolve(self, ref: str) -> DatasetEntry:
        """Returns a dataset by local name or did. Raises NotFound (with the nearest name) or Invalid."""
        found = self.look(ref)
        if found is not None:
            return found
        if ref.startswith(DID_ODF):
            short = DatasetId.parse(ref).short
            raise NotFound(f"no dataset {short} here", rule="dataset-ref", hint="odfctl mirror add takes a did")
        near = difflib.get_close_matches(ref, [entry.name for entry in self.entries()], n=1)
        hint = f"did you mean {near[0]}?" if near else "odfctl get datasets lists what is here"
        raise NotFound(f"no dataset {ref!r} here", rule="dataset-ref", hint=hint)

    def look(self, ref: str) -> DatasetEntry | None:
        """Returns a dataset for callers other than the owner, without a search for the nearest name. Raises Invalid."""
        if ref.startswith(DID_ODF):
            return self.find(DatasetId.parse(ref))
        resource = self._resources.get(KIND, parse_own_name(ref))
        return None if resource is None else _entry(resource)

    def find(self, dataset: DatasetId) -> DatasetEntry | None:
        """Returns a dataset by its id, with an index: the cost does not grow with the number of datasets."""
        named = map(_entry, self._resources.about(KIND, str(dataset)))
        return next((entry for entry in named if entry.id == dataset), None)

    def name_of(self, dataset: DatasetId) -> str:
        """Returns the local name of a dataset, or its shortened did, to show to people."""
        entry = self.find(dataset)
        return entry.name if entry else dataset.short

    def add(self, name: str, dataset: DatasetId, now: Instant) -> None:
        """Names a dataset. Raises Invalid if the name is that of another dataset, or the dataset has another name."""
        parsed = self.check(name, dataset)
        spec = _Spec((Rendition((str(dataset),)),))
        self._resources.apply(KIND, parsed, msgspec.json.encode(spec), now, about=str(dataset))

    def check(self, name: str, dataset: DatasetId) -> DatasetName:
        """Checks that ``add`` would accept a name, and returns it. Raises Invalid."""
        parsed = parse_own_name(name)
        held = self._resources.get(KIND, parsed)
        if held is not None and _entry(held).id != dataset:
            raise _taken(name, _entry(held).id)
        known = self.find(dataset)
        if known is not None and known.name.casefold() != parsed.casefold():
            raise Invalid(
                f"{dataset.short} is here already, as {known.name}",
                rule="dataset-exists",
                hint=f"to call it {name}: odfctl rename {known.name} {name}",
            )
        return parsed

    def rename(self, entry: DatasetEntry, name: str, now: Instant) -> DatasetEntry:
        """Renames a dataset; names that differ in case are the same. Raises Invalid if the name is taken."""
        parsed = parse_own_name(name)
        held = self._resources.get(KIND, parsed)
        if held is not None and _entry(held).id != entry.id:
            raise _taken(name, _entry(held).id)
        spec = _Spec((Rendition((str(entry.id),)),), entry.created_at)
        self._resources.delete(KIND, entry.name, now)
        self._resources.apply(KIND, parsed, msgspec.json.encode(spec), now, about=str(entry.id))
        return DatasetEntry(name=parsed, id=entry.id, created_at=entry.created_at)

    def remove(self, name: str, now: Instant) -> None:
        self._resources.delete(KIND, name, now)


def resolve_dataset(ref: str, meant: Mapping[str, str], catalog: Catalog) -> DatasetEntry:
    """Resolves a resource's reference: to the dataset it was resolved to before, else by its present name or did.

    ``meant``: dids by the keys of references. Raises NotFound, Invalid.
    """
    key = reference_key(ref, _TYPE)
    did = meant.get(key)
    if did is None and "/" in key:
        hint = "odfctl get datasets -w lists what is here, with accounts"
        raise NotFound(f"there is no {key}", rule="dataset-ref", hint=hint)
    if did is None:
        return catalog.resolve(ref.removeprefix(f"{_TYPE}:"))
    found = catalog.find(DatasetId.parse(did))
    if found is None:
        hint = "it goes on when that comes again; to mean another of the name, apply it again"
        raise NotFound(f"the dataset {ref!r} that was meant is gone", rule="dataset-ref", hint=hint)
    return found


def default_name(dataset: DatasetId) -> DatasetName:
    """Derives a name for a dataset that was given none."""
    return DatasetName(f"odf-{dataset.public_key.hex()[:12]}")


def _taken(name: str, dataset: DatasetId) -> Invalid:
    return Invalid(
        f"{name} is already the name of {dataset.short}",
        rule="dataset-exists",
        hint=f"choose another name, or first: odfctl rename {name} OTHER",
    )


def _entry(resource: Resource) -> DatasetEntry:
    spec = msgspec.json.decode(resource.spec, type=_Spec)
    (shard,) = spec.renditions[-1].shards
    created_at = resource.created_at if spec.created_at is None else spec.created_at
    return DatasetEntry(name=DatasetName(resource.name), id=DatasetId.parse(shard), created_at=created_at)
