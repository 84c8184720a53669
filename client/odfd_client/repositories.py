"""Opens repositories: ``open_repository`` reads datasets of folders, web servers and buckets without a node."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import replace
from typing import Any, Final, NoReturn, Self

from odfd_client.chain_blocks import Notice
from odfd_client.datasets import Dataset
from odfd_client.errors import Invalid, NotFound, OdfdError, Refused
from odfd_client.expressions import instant
from odfd_client.places import Place, open_place
from odfd_client.relations import Selection
from odfd_client.stored_chains import Cut, StoredChain
from odfd_client.stored_collections import SEALED, StoredCollection, beside, shards_in
from odfd_client.stored_datasets import StoredDataset
from odfd_client.stored_rows import refusal
from odfd_client.stored_slices import CheckedObjects
from odfd_client.values import DatasetInfo, moment

_DID: Final = "did:odf:"
_MAX_LIST: Final = 1 << 20
_MAX_NAME: Final = 1024
_MOST_HANDOVERS: Final = 64
_MILLI: Final = 1_000_000
_HINT: Final = "name the folder of a dataset, or its id; datasets() lists those that the repository names"


def open_repository(
    where: str | os.PathLike[str], *, token: str = "", ca_file: str | os.PathLike[str] | None = None
) -> Repository:
    """Opens a repository of the ODF layout: a folder, or a URL of ``file``, ``http``, ``https``, ``s3`` or ``gs``.

    It has datasets in folders, or is the folder of one dataset; a workspace of kamu is one too. ``token`` is sent to a
    web server; ``s3`` and ``gs`` use the credentials that Arrow finds. Raises Invalid, NotFound, Unreachable.
    """
    return Repository(open_place(where, token, ca_file))


class Repository:
    """Datasets that are read without a node. All blocks and slices are hashed before they are used."""

    def __init__(self, place: Place) -> None:
        self._place, self.shown = place, place.shown
        self.objects = CheckedObjects()
        self._chains: dict[str, StoredChain] = {}
        self._folders: dict[str, str] = {}
        """Folders of ids that were found."""
        self._collections: dict[str, str] = {}
        """Folders of collections, by the ids of their first shards."""

    def datasets(self) -> list[DatasetInfo]:
        """Lists the datasets. Raises Refused if the place does not tell its folders."""
        return [self._info(name, folder) for name, folder in self._list()]

    def _info(self, name: str, folder: str) -> DatasetInfo:
        found = _info(name, self._of(folder))
        if name == "." or (collection := self.collection(name)) is None:
            return found
        return replace(found, records=sum(cut.last_offset() + 1 for cut in collection.cuts()))

    def open(self, ref: str = "") -> Dataset:
        """Returns a dataset by the name of its folder or by its id; none is named for the folder of one dataset.

        A name means the rendition that is active, with all its shards; an id means one chain. Raises NotFound.
        """
        found = StoredDataset(self, Selection(ref or "."))
        self.chain(ref or ".").id()
        if (collection := self.collection(ref or ".")) is not None:
            collection.heads()
        return found

    def at(self, time: str | datetime.date | None, *refs: str) -> ReadTogether:
        """Reads several datasets at one time: ``with r.at(None, "a", "b") as read: read["a"].to_arrow()``.

        ``time``: ``None`` is the greatest time that is complete in all of them. Nothing is held: what the repository
        deletes is an error when it is read. Raises NotFound, Refused for a time that is not complete.
        """
        if len(set(refs)) != len(refs) or not refs:
            raise Invalid("name each dataset once, and one at least", rule="dataset", hint='r.at(None, "a", "b")')
        uppers = {ref: self.upper(ref) for ref in refs}
        open_ones = [upper for upper in uppers.values() if upper is not None]
        if time is not None:
            said = instant(time)
            self._check_complete(said, uppers)
        elif open_ones:
            said = moment(min(open_ones) - 1)
        else:
            said = moment(max(self.chain(ref).head().time for ref in refs) // _MILLI + 1)
        return ReadTogether(said, {ref: self.open(ref).at(said) for ref in refs})

    def hold(self, ref: str, **_: object) -> NoReturn:
        """Raises Refused: nobody keeps a hold in a repository."""
        raise refusal(
            f"a hold of {ref}",
            "hold it on the node that writes it, or mirror it on yours: odfctl mirror add; "
            "pinned(pin) reads the same rows, or is an error",
        )

    def sql(self, *_: object, **__: object) -> NoReturn:
        """Raises Refused: SQL is answered by a node."""
        raise refusal("SQL", "open(NAME).select(…).where(…), or duckdb(connection)")

    def chain(self, ref: str, time: int | None = None) -> StoredChain:
        if not isinstance(ref, str) or not ref or len(ref) > _MAX_NAME:
            raise Invalid("a dataset is named by a text", rule="dataset", hint='r.open("weather")')
        if ref.startswith(_DID):
            return self._of_id(ref)
        found = self._of(self._first_folder(_folder_of(ref)))
        if found.head_name() is None:
            raise NotFound(f"there is no dataset {ref} in {self.shown}", rule="dataset", hint=_HINT)
        self._folders[found.id()] = found.folder
        last = None if time is None else time // _MILLI
        for notice in self.succession(found):
            if last is not None and notice.time > last:
                if notice.ended > 1:
                    raise refusal(f"{ref} when it was {notice.ended} shards", "open its first shard by its id")
                break
            if notice.shards > 1:
                break  # one shard would be taken for all; whoever listens is told where it goes on
            try:
                found = self._of_id(notice.to)
            except NotFound:
                break  # whoever listens is told where it goes on
        return found

    def collection(self, ref: str) -> StoredCollection | None:
        """Returns the shards that a name means; ``None``: it means one chain. Raises NotFound, Invalid.

        An id means the shards of the opened collection whose first shard it is.
        """
        folder = self._collections.get(ref, "") if ref.startswith(_DID) else _folder_of(ref)
        signed = shards_in(self._place, folder) if folder else None
        if signed is None:
            return None
        chains = tuple(self._of(beside(folder, each.id)) for each in signed)
        self._folders.update({each.id: chain.folder for each, chain in zip(signed, chains, strict=True)})
        self._collections[signed[0].id] = folder
        if not ref.startswith(_DID) and chains[0].head_name() is not None and self._has_gone_on(chains[0]):
            return None
        return StoredCollection(ref if not ref.startswith(_DID) else folder, chains, signed)

    def _has_gone_on(self, first: StoredChain) -> bool:
        """Whether the collection handed over to one chain that is in the repository, and did not come back.

        With further shards it stays what it was, complete up to the handover: whoever listens is told.
        """
        after = self.succession(first)
        try:
            return bool(after) and after[0].shards == 1 and self._of_id(after[-1].to) is not first
        except NotFound:
            return False

    def _first_folder(self, folder: str) -> str:
        """Returns the folder of the chain that a name means: that of the first shard, if there are several."""
        signed = shards_in(self._place, folder)
        if signed is None:
            return folder
        if not folder:
            raise Refused(f"{self.shown} is the folder of a collection, whose shards are beside it",
                          rule="repository-collection", hint="open the folder above, and name it there")  # fmt: skip
        self._folders.setdefault(signed[0].id, beside(folder, signed[0].id))
        if self._of(beside(folder, signed[0].id)).head_name() is None:
            StoredCollection(folder, (self._of(beside(folder, signed[0].id)),), signed[:1]).heads()
        return beside(folder, signed[0].id)

    def upper(self, ref: str) -> int | None:
        """Returns the time in milliseconds before which a dataset is complete; ``None``: sealed."""
        collection = self.collection(ref)
        if collection is None:
            return self.chain(ref).upper()
        upper = collection.upper()
        return None if upper >= SEALED else upper

    def succession(self, dataset: str | StoredChain) -> list[Notice]:
        """Lists where a chain goes on, as far as the repository tells; of shards, by the first of each rendition."""
        chain = self._of_id(dataset) if isinstance(dataset, str) else dataset
        found: list[Notice] = []
        while len(found) < _MOST_HANDOVERS:
            notice = chain.notice()
            if notice is None or (found and notice.time <= found[-1].time):
                break  # it goes on nowhere, or came back from there
            found.append(notice)
            try:
                chain = self._of_id(notice.to)
            except NotFound:
                break
        return found

    def _of(self, folder: str) -> StoredChain:
        return self._chains.setdefault(folder, StoredChain(self._place, folder))

    def _of_id(self, dataset: str) -> StoredChain:
        """Returns the chain of an id. Raises NotFound."""
        if dataset not in self._folders:
            self._folders[dataset] = self._find(dataset)
        return self._of(self._folders[dataset])

    def _find(self, dataset: str) -> str:
        named = dataset.removeprefix(_DID)
        if named.isalnum() and self._of(named).head_name() is not None and self._of(named).id() == dataset:
            return named
        for name, folder in self._list(quietly=True):
            if name == dataset or self._is_of(self._of(folder), dataset):
                return folder
        raise NotFound(f"there is no dataset {dataset} in {self.shown}", rule="dataset", hint=_HINT)

    def _is_of(self, chain: StoredChain, dataset: str) -> bool:
        try:
            return chain.head_name() is not None and chain.id() == dataset
        except OdfdError:
            return False

    def _list(self, *, quietly: bool = False) -> list[tuple[str, str]]:
        """Returns names and folders. Raises Refused if the place does not tell; ``quietly``: then none."""
        if self._of("").head_name() is not None:
            return [(".", "")]
        folders = self._place.folders()
        if folders is None:
            folders = self._list_served()
        if folders is None:
            if quietly:
                return []
            raise Refused(f"{self.shown} does not list its datasets", rule="repository-listing",
                          hint="open one by the name of its folder")  # fmt: skip
        found = {folder: shards_in(self._place, folder) for folder in folders}
        shards = {one.id.removeprefix(_DID) for each in found.values() for one in each or ()}
        there = {each: each if signed is None else beside(each, signed[0].id) for each, signed in found.items()}
        return [
            (each, folder)
            for each, folder in there.items()
            if (quietly or each not in shards) and self._of(folder).head_name() is not None
        ]

    def _list_served(self) -> list[str] | None:
        """Returns the names in the list of a node's site; ``None``: it has none."""
        raw = self._place.read("", _MAX_LIST)
        try:
            found = [_folder_of(load["name"]) for load in json.loads(raw or b"")["datasets"]]
        except (ValueError, KeyError, TypeError, RecursionError, Invalid):
            return None
        return found

    def _check_complete(self, said: str, uppers: dict[str, int | None]) -> None:
        at = datetime.datetime.fromisoformat(said)
        since = (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp() * 1000
        for ref, upper in uppers.items():
            if upper is not None and since >= upper:
                raise Refused(f"{ref} is complete before {moment(upper)}, not at {said}", rule="hold-upper",
                              hint="at(None, …) takes the greatest time that is complete in all")  # fmt: skip


class ReadTogether:
    """Several datasets at one time: ``read["a"]`` is the dataset up to it."""

    def __init__(self, time: str, datasets: dict[str, Dataset]) -> None:
        self.time, self._datasets = time, datasets

    def __getitem__(self, ref: str) -> Dataset:
        return self._datasets[ref]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None: ...


def _info(name: str, chain: StoredChain) -> DatasetInfo:
    head, (dataset, kind) = chain.head(), chain.seed()
    cut = Cut(chain, head)
    watermark = next((each.watermark for each in chain.back_to(0, head) if each.watermark is not None), None)
    return DatasetInfo(
        name=name, id=dataset, kind=kind, blocks=head.number + 1, records=cut.last_offset() + 1, bytes=None,
        watermark=None if watermark is None else moment(watermark // _MILLI), head=head.hash, state="", owner=False,
        rely_on="",
    )  # fmt: skip


def _folder_of(name: str) -> str:
    if name == ".":
        return ""
    parts = name.split("/")
    if len(parts) > 2 or any(not part or part.startswith(".") or "\\" in part or "\0" in part for part in parts):
        raise Invalid(f"not the name of a dataset: {name[:80]!r}", rule="dataset", hint="the name of its folder")
    return name
