"""Finds the dataset that a manifest declares: also one that was deleted and whose data is kept."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.model.events import SetTransform
from chain.state import ChainState, load_state
from chain.store.former_epochs import SET_ASIDE
from odfd.api.resources.desired_state import DesiredSnapshot
from odfd.api.resources.sharded_birth import check_shards
from odfd.datasets import unmanaged
from odfd.datasets.catalog import resolve_dataset
from odfd.renditions import tables
from odfd.renditions.sharded_inputs import over
from odfd.state.directory import StateDirectory


def dataset_of(home: StateDirectory, desired: DesiredSnapshot) -> tuple[tuple[DatasetId, ChainState] | None, bool]:
    """Returns the dataset with its state, or ``None`` for a new one; and whether it is a deleted one with kept data.

    Raises Invalid for a ``did`` of another dataset than the name's, NotFound for one that is not here at all. Blocking.
    """
    with home.catalog() as catalog:
        entry = None if desired.held is None else catalog.find(desired.held)
        known = None if desired.did is None else catalog.find(desired.did)
    if entry is None and desired.did is not None and known is None:
        return (desired.did, _kept_state(home, desired.did)), True
    if known is not None and known.is_inner and entry is not None and entry.id == _whole(home, known.id):
        known = entry  # the did of a rendition from before a handover, or of a shard
    is_same = entry is not None and entry.id in (desired.did, None if known is None else known.id)
    if desired.did is not None and not is_same:
        text = f"{desired.did.short} is {known.name}" if known else f"{desired.name} is another dataset"
        hint = f"odfctl rename {known.name} {desired.name}" if known else "choose another name, or leave out spec.did"
        raise Invalid(text, rule="dataset-did", hint=hint, place=desired.manifest.place("did"))
    return (None if entry is None else (entry.id, load_state(home.chains.chain(entry.id)))), False


def over_shards(home: StateDirectory, desired: DesiredSnapshot, dataset: DatasetId | None) -> DesiredSnapshot:
    """Replaces each input that has several shards by its shards, as inputs of their own. Blocking.

    ``dataset``: the declared dataset, if it is here already. Raises Refused and Invalid, also for impossible shards.
    """
    check_shards(home, desired, dataset)
    metadata = tuple(
        _over_shards(home, each, desired) if isinstance(each, SetTransform) else each
        for each in desired.snapshot.metadata
    )
    snapshot = msgspec.structs.replace(desired.snapshot, metadata=metadata)
    return desired if snapshot == desired.snapshot else msgspec.structs.replace(desired, snapshot=snapshot)


def _over_shards(home: StateDirectory, transform: SetTransform, desired: DesiredSnapshot) -> SetTransform:
    for ref in [each.dataset_ref for each in transform.inputs]:
        if ref.removeprefix("Dataset:").startswith("did:"):
            continue  # an id names one chain
        with suppress(NotFound, Invalid), home.catalog() as catalog:  # told when it is resolved, if it is missing
            shards = home.shards_of(resolve_dataset(ref, desired.meant, catalog, desired.account).id)
            if len(shards) > 1:
                transform = over(transform, (ref,), [str(each) for each in shards])
    return transform


def _whole(home: StateDirectory, dataset: DatasetId) -> DatasetId:
    """Returns the chain that stands for the collection of one."""
    with home.database.read() as connection:
        return tables.of(connection, dataset).active.dataset


def _kept_state(home: StateDirectory, dataset: DatasetId) -> ChainState:
    with home.database.read() as connection:
        unmanaged.find(connection, dataset)
    return load_state(home.chains.former(dataset, SET_ASIDE))
