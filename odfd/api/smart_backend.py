"""Serves the smart protocol over HTTP: what a token may read, and pushes (``odfd.smart.ports.SmartBackend``).

The blocks of a push are kept in a folder of their own until it ends, and its objects in the store, where no block names
them yet, until all is verified at level ``data``; then it is committed as an import is. Objects that an interrupted
push brought need not be sent again. A push needs the role maintainer, since blocks define what a dataset is. A new
dataset belongs to the account, and is private, whatever the other side says, until it is published here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.ids import DID_ODF, DatasetId, parse_own_name
from chain.model.block import objects_of
from chain.multihash import SHA3_256, Multihash
from chain.store.files import disk
from chain.store.layout import BLOCKS, HEAD, DirectoryChain
from chain.wording import plural
from odfd.access.relations import Action, Role
from odfd.api.access.requests import AccessControl
from odfd.control.assembly import Context
from odfd.network.library import ServingLibrary
from odfd.published.signed import SHARD_MISSING, PublishedCollection, collection_in
from odfd.published.web import link
from odfd.runtime.subjects import about
from odfd.services.access.guard import Guard
from odfd.services.network.site_library import NodeSiteLibrary
from odfd.services.transfer.collection_transfer import CollectionTransfer
from odfd.services.transfer.import_export import check_not_own
from odfd.services.transfer.remotes import Remotes
from odfd.smart.batches import NamedBlock
from odfd.smart.messages import ObjectFile
from odfd.smart.ports import Incoming, PushSession
from odfd.store.access_tokens import TokenStore
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import STAGED, StateDirectory
from odfd.transfer.folders import Transfer
from odfd.transfer.object_list import may_link
from odfd.verify.terms import pages_of

MAX_OBJECT: Final = 16 << 30
"""Most bytes of one uploaded object."""
BATCH: Final = 1024
"""Blocks that are read at a time."""


class NodeSmartBackend:
    """Serves the libraries of accounts on one node, and takes in their pushes."""

    def __init__(
        self,
        home: StateDirectory,
        library: ServingLibrary,
        access: tuple[AccessControl, TokenStore],
        import_export: CollectionTransfer,
        remotes: Remotes,
        context: Context,
        new_id: Callable[[], str],
    ) -> None:
        self._home, self._library, self._context, self._new_id = home, library, context, new_id
        self._access, self._tokens = access
        self.import_export, self.room = import_export, remotes.staging
        self._staging = home.folder(STAGED) / "pushed"
        self.room.add(self._staging)
        self.sessions: dict[tuple[str, str], list[NodePushSession]] = {}
        """Open pushes by account and name in lower case."""

    def guard(self, token: str) -> Guard:
        """Returns the guard with the rights of a token. Blocking. Raises Refused."""
        return self._access.guard_of(self._tokens.admit(token))

    def library(self, token: str) -> NodeSiteLibrary:
        guard = self.guard(token)
        readable = self._library.as_read_by(lambda datasets: guard.filter_datasets(list(datasets)))
        return NodeSiteLibrary(self._home, readable, lambda dataset: bool(guard.filter_datasets([dataset])))

    def push(self, token: str, ref: str) -> PushSession:
        guard, name = self.guard(token), parse_own_name(ref)
        folder = self._staging / self._new_id()
        session = NodePushSession(self, self._home, guard, (name, self._entry(guard, name)), folder)
        self.sessions.setdefault(_key(guard, name), []).append(session)
        return session

    def _entry(self, guard: Guard, name: str) -> DatasetEntry | None:
        """Returns the dataset to push to, by its name or the multibase form of its id; ``None``: a new one."""
        found = None
        for called in (name, DID_ODF + name):
            with suppress(NotFound, Invalid):
                found = found or guard.find_dataset(called, Action.MAINTAIN)
        if found is None and not guard.subject.is_owner:
            guard.check_identified("to push a new dataset", Role.MAINTAINER)
        return found

    async def unite(self, token: str, ref: str, collection: bytes) -> None:
        found, name = collection_in(collection, ref), parse_own_name(ref)
        await trio.to_thread.run_sync(self._unite, token, name, found)

    def _unite(self, token: str, name: str, found: PublishedCollection) -> None:
        self._check_united(token, name, found)
        self.import_export.take_united(found, name)

    def _check_united(self, token: str, name: str, found: PublishedCollection) -> None:
        """Raises Invalid, Refused if an account may not make this collection, Conflict if a shard is not here."""
        guard = self.guard(token)
        entry = self._entry(guard, name)
        if entry is not None and entry.id != found.ids[0]:
            raise Invalid(f"{name} is the name of another dataset here", rule="graft", hint="push under another name")
        for head in found.heads:
            check_not_own(self._home, head.dataset, name)
            try:
                guard.find_dataset(str(head.dataset), Action.MAINTAIN)
                # The head is the client's claim; a shard that lacks it would make the collection look complete.
                self._home.chains.chain(head.dataset).block_by_hash(head.head)
            except NotFound:
                text = f"shard {head.dataset} is not here as far as its head says"
                raise Conflict(text, rule=SHARD_MISSING, hint="push it first, by its id") from None

    def upload(self, token: str, ref: str, name: Multihash, size: int) -> Incoming | None:
        guard = self.guard(token)
        for session in self.sessions.get(_key(guard, parse_own_name(ref)), ()):
            if (expected := session.expected.get(name)) is not None:
                if size != expected:
                    text = f"object {name.short} has {expected:,} bytes, and {size:,} are announced"
                    raise Invalid(text, rule="smart-object-size")
                # Another push may have brought it meanwhile.
                return None if self._home.objects.has(name) else session.incoming(name, size)
        hint = "objects are uploaded while a push to /NAME/push waits for them"
        raise NotFound(f"no push expects the object {name.short}", rule="smart-objects", hint=hint)

    def ended(self, session: NodePushSession, guard: Guard, name: str) -> None:
        key = _key(guard, name)
        found = [each for each in self.sessions.get(key, ()) if each is not session]
        if found:
            self.sessions[key] = found
        else:
            self.sessions.pop(key, None)

    def tell(self, done: Transfer, name: str) -> None:
        """Emits an event about pushed blocks. In the event loop."""
        if done.blocks:
            text = f"{plural(done.blocks, 'block')} by a push"
            self._context.events.emit(
                "dataset.appended", name, text, about=about(done.dataset), blocks=done.blocks, records=0
            )


def _key(guard: Guard, name: str) -> tuple[str, str]:
    return guard.subject.account or "", name.casefold()


class NodePushSession:
    """One push to one dataset, until it is committed or closed."""

    def __init__(
        self,
        backend: NodeSmartBackend,
        home: StateDirectory,
        guard: Guard,
        named: tuple[str, DatasetEntry | None],
        folder: Path,
    ) -> None:
        self._backend, self._home, self._guard, self._folder = backend, home, guard, folder
        self._ref, self._entry = named
        self._name = self._ref if self._entry is None else self._entry.name
        self._before: Multihash | None = None
        self._last: Multihash | None = None
        self._chain: DirectoryChain | None = None
        self.expected: dict[Multihash, int] = {}
        """Sizes of the objects that are expected as uploads."""

    def head(self) -> Multihash | None:
        if self._entry is not None:
            head = self._home.chains.chain(self._entry.id).head()
            self._before = None if head is None else head.hash
        return self._before

    def stage(self, blocks: Sequence[NamedBlock]) -> None:
        folder = self._folder / BLOCKS
        self._backend.room.take(self._folder, sum(len(raw) for _, raw in blocks), len(blocks), is_mirrored=False)
        with disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, raw in blocks:
                (folder / str(name)).write_bytes(raw)
        self._last = blocks[-1][0]

    def lacking(self, files: Sequence[ObjectFile]) -> Collection[Multihash]:
        named, may_have_links = self._named_objects(self._link())
        wanted: dict[Multihash, int] = {}
        for file in files:
            name = file.hash
            if named.get(name, file.size) != file.size:
                raise Invalid(f"object {name.short} has another size in its block", rule="smart-object-size")
            # Otherwise any token that may push could fill the store with objects that no block names.
            if name not in named and not may_have_links:
                text = f"object {name.short} is named by no received block"
                raise Invalid(text, rule="smart-objects", hint="push the objects of these blocks alone")
            if file.size > MAX_OBJECT:
                raise Refused(
                    f"object {name.short} has {file.size:,} bytes, and {MAX_OBJECT:,} are taken",
                    rule="smart-object-size",
                )
            wanted[name] = file.size
        missing = set(self._home.objects.missing(wanted))
        self.expected |= {name: wanted[name] for name in missing}
        return missing

    def _link(self) -> DirectoryChain:
        """Returns the whole chain: the staged blocks, after those that are here already."""
        if self._chain is None:
            assert self._last is not None
            take = self._backend.room.take
            lacking = link(
                self._last, self._folder, self._home.chains.raw_of,
                lambda size, files=1: take(self._folder, size, files, is_mirrored=False),
            )  # fmt: skip
            if lacking is not None:
                hint = "push all blocks after the head that is here"
                raise Invalid(
                    f"block {lacking.short} is missing before the received ones", rule="prev-block", hint=hint
                )
            with disk(self._folder):
                (self._folder / HEAD).parent.mkdir(exist_ok=True)
                (self._folder / HEAD).write_text(str(self._last))
            chain = DirectoryChain(self._folder)
            dataset = self._backend.import_export.check_pushed(chain, self._name, self._account())
            self._check_goes_on(chain, dataset)
            self._chain = chain
        return self._chain

    def _check_goes_on(self, chain: DirectoryChain, dataset: DatasetId) -> None:
        if self._entry is not None and dataset != self._entry.id:
            hint = "push under another name"
            raise Invalid(f"{self._name} is the name of another dataset here", rule="graft", hint=hint)
        if self._before is None:
            return
        try:
            chain.block_by_hash(self._before)
            number = self._home.chains.chain(dataset).block_by_hash(self._before).sequence_number
            goes_on = chain.block_at(number).hash == self._before
        except NotFound:
            goes_on = False
        if not goes_on:
            text = f"the received chain does not continue from {self._before.short}, the head here"
            raise Conflict(text, rule="import-diverged", hint="pull what is here, or push under another name")

    def _named_objects(self, chain: DirectoryChain) -> tuple[Mapping[Multihash, int], bool]:
        """Returns names and sizes of the objects of new blocks, and whether rows of these may link to others."""
        head = chain.head()
        assert head is not None
        before = self._before
        start = 0 if before is None or self._entry is None else chain.block_by_hash(before).sequence_number + 1
        found: dict[Multihash, int] = {}
        links = False
        for terms, blocks in pages_of(chain, start, head.size, BATCH):
            found |= {name: size for block in blocks for name, size in objects_of(block)}
            links = links or may_link(terms, blocks)
        return found, links

    def incoming(self, name: Multihash, size: int) -> Incoming:
        self._backend.room.take(self._folder, size, 1, is_mirrored=False)
        return _Incoming(self._home, name, size)

    async def commit(self) -> None:
        await trio.to_thread.run_sync(self._check_again)
        done = await self._backend.import_export.take_pushed(self._folder, self._name, self._account())
        self._backend.tell(done, self._name)

    def _check_again(self) -> None:
        """Checks that the token still has its rights, and that no block is missing."""
        self._link()
        # A push takes long; its token may have been revoked, or its role taken away, since it began.
        if not self._guard.is_same_caller():
            raise Refused("the rights of your account changed meanwhile", rule="access-role", hint="push again")
        if self._entry is not None:
            self._guard.find_dataset(self._name, Action.MAINTAIN)

    def _account(self) -> str | None:
        """Returns the account that a new dataset belongs to; ``None`` for the node's owner."""
        subject = self._guard.subject
        return None if self._entry is not None or subject.is_owner else subject.account

    def close(self) -> None:
        self._backend.ended(self, self._guard, self._ref)
        self._backend.room.remove(self._folder)


class _Incoming:
    """An object that is being uploaded into the store."""

    def __init__(self, home: StateDirectory, name: Multihash, size: int) -> None:
        self._objects, self._name, self._size = home.objects, name, size
        self._staged = home.objects.stage()
        self._digest = hashlib.sha3_256()
        self._received = 0
        with disk(self._staged):
            self._file = self._staged.open("wb")

    def write(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._size:
            raise Invalid(
                f"more than {self._size:,} bytes of {self._name.short} were received", rule="smart-object-size"
            )
        self._digest.update(data)
        with disk(self._staged):
            self._file.write(data)

    def finish(self) -> None:
        with disk(self._staged):
            self._file.close()
        if self._received != self._size:
            raise Invalid(f"{self._name.short} ended after {self._received:,} bytes", rule="smart-object-size")
        if Multihash.from_digest(SHA3_256, self._digest.digest()) != self._name:
            raise Invalid(f"the received bytes are not {self._name.short}", rule="slice-physical-hash")
        self._objects.adopt(self._staged, self._name)

    def close(self) -> None:
        self._file.close()
        self._staged.unlink(missing_ok=True)
