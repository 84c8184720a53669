"""Declares the labels that have a meaning: their types, values, and long names. Pure.

A label with a schema is written by its short name or its URI and kept by its short name, so that the two are one label.
Other labels are whatever people write. Source: RFC-018 (Labels and annotations), RFC-020 (Auth attribute labels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from odfd.resources.resource import Json, Resource

_DATASET: Final = "https://opendatafabric.org/schemas/dataset/v1alpha1/"
PUBLIC_READ: Final = "AllowPublicRead"
ANONYMOUS_READ: Final = "AllowAnonymousRead"
DATASET_KIND: Final = "datasetKind"


class LabelSchema(NamedTuple):
    """The values that a label may have, and the resources that may have it."""

    uri: str
    values: tuple[Json, ...]
    types: frozenset[str]
    """The types of resource that may have it; none: all."""
    is_access: bool = False
    """Whether it decides who may read the resource; then only an owner of it changes it."""


_ON_DATASETS: Final = frozenset({"Dataset"})
SCHEMAS: Final[Mapping[str, LabelSchema]] = {
    PUBLIC_READ: LabelSchema(_DATASET + PUBLIC_READ, (True, False), _ON_DATASETS, is_access=True),
    ANONYMOUS_READ: LabelSchema(_DATASET + ANONYMOUS_READ, (True, False), _ON_DATASETS, is_access=True),
    DATASET_KIND: LabelSchema(_DATASET + "DatasetKind", ("Root", "Derivative"), frozenset()),
}
"""By the short name."""
ACCESS: Final = frozenset(name for name, each in SCHEMAS.items() if each.is_access)
_SHORT: Final = {
    key: name for name, each in SCHEMAS.items() for key in (each.uri, each.uri.removeprefix(_DATASET)) if key != name
}


_MISSPELT: Final = {name.lower(): name for name in ACCESS}
"""Labels that decide who may read, by the last part of their name in lower case: no spelling of one is ignored."""


def _last(key: str) -> str:
    return key.rpartition("/")[2].lower()


def short_name(key: str) -> str:
    """Returns the name under which a label is kept."""
    return _SHORT.get(key, key)


def twice(labels: Iterable[str]) -> str | None:
    """Returns a label that stands by its short name and by its URI; ``None`` if there is none."""
    keys = set(labels)
    return next((name for name, each in SCHEMAS.items() if {name, each.uri} <= keys), None)


def by_short_name(labels: Mapping[str, Json]) -> dict[str, Json]:
    return {short_name(key): value for key, value in labels.items()}


def wrong_values(
    type_: str, labels: Mapping[str, Json], annotations: Mapping[str, Json]
) -> Iterator[tuple[str, str, str, str]]:
    """Yields path, message, rule and hint of each label that its schema does not permit on a resource of the type."""
    for key, value in labels.items():
        name = short_name(key)
        schema = SCHEMAS.get(name)
        if schema is None:
            meant = _MISSPELT.get(_last(key))
            if meant is not None:
                text = f"{key[:80]} decides nothing: the label that decides who may read is {meant}"
                yield f"labels.{key}", text, "label-name", f"write {meant}"
            continue
        if schema.types and type_ not in schema.types:
            text = f"{name} is a label of {' and '.join(sorted(schema.types))}, and this is of the type {type_}"
            yield f"labels.{key}", text, "label-type", "leave it out"
        elif not any(type(value) is type(each) and value == each for each in schema.values):
            said = " or ".join(_write(value) for value in schema.values)
            yield f"labels.{key}", f"{_write(value)[:80]} is no value of {name}", "label-value", f"it is {said}"
    for key in annotations:
        meant = _MISSPELT.get(_last(key))
        if meant is not None:
            text = f"{meant} decides who may read, as a label; as an annotation it has no effect"
            yield f"annotations.{key}", text, "label-annotation", f"write it under labels: {meant}: true"


def _write(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def index_labels(resource: Resource) -> Mapping[str, Json]:
    """Returns the labels by which a resource is looked up: its own, and the kind of a dataset, which the node sets.

    The kind is ``None`` where no declaration says it, but the chain.
    """
    if resource.type != "Dataset":
        return resource.labels
    return {**resource.labels, DATASET_KIND: (resource.spec or {}).get("kind")}
