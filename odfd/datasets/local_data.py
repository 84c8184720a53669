"""Decides whether the data of a dataset is here: a mirror may keep only its chain, or only newer blocks."""

from __future__ import annotations

from chain.errors import NotFound
from chain.ids import DatasetId
from odfd.store import collections, mirror_specs
from odfd.store.directory import StateDirectory
from odfd.store.holdings import Holdings


def held_from(home: StateDirectory, dataset: DatasetId) -> int:
    """Returns the number of the first block whose data should be here, like that of all later ones."""
    with home.database.read() as connection:
        return Holdings(connection).extent(dataset).first


def need_data(home: StateDirectory, dataset: DatasetId, name: str, *, whole: bool = False) -> None:
    """Raises NotFound for a mirror without data, or with only a part where ``whole`` is needed."""
    with home.database.read() as connection:
        spec = mirror_specs.of(connection, dataset)
        first = Holdings(connection).extent(dataset).first
        is_gone = bool(first) and collections.is_let_go(connection, dataset)
    if is_gone:
        raise NotFound(
            f"the data of {name} is gone: it was dropped after the handover of its collection to another rendition",
            rule="rendition-dropped",
            hint="odfctl get renditions names the active one",
        )
    if whole and first:
        raise NotFound(
            f"the data of {name} before block #{first} is not kept here",
            rule="mirror-keep",
            hint=f"odfctl mirror add {dataset} --as {name} --keep all fetches it",
        )
    if spec is not None and spec.want == "chain":
        raise NotFound(
            f"{name} is mirrored without its data",
            rule="mirror-want",
            hint=f"odfctl mirror add {dataset} --as {name} --want data",
        )
