"""Shows who may sign for a dataset, and changes that, with keys that may be kept elsewhere.

No secret is ever received; one is given out only when a person takes a dataset's key offline. A new version is in force
here before it is announced, and the head that goes with it is signed at once.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Literal

from chain import instant
from chain.errors import Invalid, Refused
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.authority import Rights
from chain.statements.envelope import Signed
from chain.statements.statement import Authority, Epoch, TreeHead
from odfd.control import wire
from odfd.control.operations import DATASET_PATH, Owner, operation
from odfd.runtime.clock import Clock
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.proofs import is_disputed
from odfd.trust.signing import authority_versions
from odfd.trust.signing.authority_versions import keep_version, note_version, sign_version
from odfd.trust.signing.owner_commit import OwnerCommitter


class AuthorityService:
    """The API service for the authorities of a node's datasets. ``announce`` is called with each new version."""

    def __init__(
        self,
        home: StateDirectory,
        committer: OwnerCommitter,
        clock: Clock,
        announce: Callable[[DatasetId, Signed], None],
    ) -> None:
        self._home = home
        self._committer = committer
        self._clock = clock
        self._announce = announce

    @operation("GET", DATASET_PATH + "/authority", needs=Owner.KEYS)
    def show_authority(self, ref: str) -> wire.AuthorityView:
        """Shows which keys may write a dataset, and which may change that. Raises NotFound, Invalid."""
        entry = self._home.resolve(ref)
        with self._home.database.read() as connection:
            rights = Authorities(connection).rights(entry.id)
            disputed = is_disputed(connection, entry.id, rights)
        return wire.AuthorityView(
            ref=entry.name,
            dataset_id=str(entry.id),
            version=rights.version,
            threshold=rights.threshold,
            roots=tuple(str(key) for key in sorted(rights.roots)),
            writers=tuple(self._writer(rights, key) for key in sorted(rights.writers)),
            epoch=rights.epoch,
            epochs=tuple(epoch_view(epoch) for epoch in rights.epochs),
            dataset_key=self._where(entry.id),
            disputed=disputed,
        )

    def _where(self, dataset: DatasetId) -> Literal["here", "offline", "elsewhere"]:
        keys = self._home.keys
        if keys.is_offline(dataset):
            return "offline"
        return "here" if keys.has_dataset_key(dataset) else "elsewhere"

    def _writer(self, rights: Rights, key: KeyDid) -> wire.WriterView:
        until = rights.writers[key]
        mine = any(held.did == key for held in self._home.keys.keys_for(rights.dataset))
        return wire.WriterView(key=str(key), expires_at=None if until is None else instant.render(until), mine=mine)

    @operation("POST", DATASET_PATH + "/authority/draft", needs=Owner.KEYS)
    def draft_authority(self, ref: str, request: wire.AuthorityDraftRequest) -> wire.AuthorityDraft:
        """Drafts the next version of an authority; nothing is signed or kept."""
        entry = self._home.resolve(ref)
        with self._home.database.read() as connection:
            rights = Authorities(connection).rights(entry.id)
        return draft_view(rights, self._draft(rights, request))

    def _draft(self, rights: Rights, request: wire.AuthorityDraftRequest) -> Authority:
        seed, tree = self._chain(rights.dataset)
        now = self._clock.now()
        if request.action == "rotate":
            return authority_versions.rotate(rights, self._home.keys.node_key().did, tree, seed, now, request.reason)
        if request.key is None:
            raise Invalid(f"{request.action} needs a key", rule="authority-key", hint="did:key:…")
        key = KeyDid.parse(request.key)
        if request.action == "add-writer":
            return authority_versions.with_writer(rights, key, request.days, seed, now)
        return authority_versions.without_writer(rights, key, tree, seed, now)

    def _chain(self, dataset: DatasetId) -> tuple[Multihash, TreeHead]:
        """Returns the hash of the first block, and the tree of all blocks here. Raises Refused if there are none."""
        chain = self._home.chains.chain(dataset)
        with self._home.database.read() as connection:
            tree = Ledger(connection).chain(dataset).frontier
        if chain.head() is None or not tree.size:
            raise Refused(
                f"no block of {dataset.short} is here", rule="authority-chain", hint="odfctl mirror add it first"
            )
        return chain.block_at(0).hash, TreeHead(size=tree.size, root_hash=tree.root)

    @operation("POST", DATASET_PATH + "/authority", needs=Owner.KEYS)
    def change_authority(self, ref: str, request: wire.AuthorityRequest) -> wire.AuthorityView:
        """Signs a draft of an authority with the keys here, adds the given signatures, keeps and announces it."""
        entry = self._home.resolve(ref)
        said, payload = draft_of(entry, request.payload)
        node, writers = self._home.keys.node_key().did, {writer.key for writer in said.writers}
        if request.drop_key and node not in writers:
            raise Refused(
                "without the dataset's key nothing on this node could sign heads",
                rule="authority-drop-key",
                hint="make this node a writer in the same version: odfctl trust authority rotate REF",
            )
        seed, _ = self._chain(entry.id)
        # The roots may have signed it elsewhere, for a chain of the same key that another node has.
        if said.head != seed:
            raise Invalid(
                f"the draft names another Seed block than that of {entry.name}",
                rule="authority-seed",
                hint="ask for a draft of it",
            )
        if said.epochs and said.epochs[-1].reason == "rotation":
            # A rotation would declare the history ended where a backup was made; for lost blocks there is recovery.
            self._committer.check_behind(entry.id)
        signed = sign_version(self._home.database, self._home.keys, said, payload, signatures_of(request.signatures))
        # Before the key goes offline and others hear of it: a crash in between leaves a version that signs.
        self._keep(said, signed)
        if request.drop_key or (node in writers and self._where(entry.id) == "elsewhere"):
            self._home.keys.take_offline(entry.id)
        self._announce(entry.id, signed)
        if any(key.did in writers for key in self._home.keys.keys_for(entry.id)):
            self._committer.sign_unsigned(entry.id)
        return self.show_authority(ref)

    @operation("POST", DATASET_PATH + "/authority/key", needs=Owner.KEYS)
    def dataset_key(self, ref: str) -> wire.DatasetKey:
        """Returns a dataset's secret key, for the operator to take it offline. Raises NotFound if it is not here."""
        entry = self._home.resolve(ref)
        return wire.DatasetKey(key=str(entry.id), seed=self._home.keys.dataset_seed(entry.id).hex())

    def _keep(self, authority: Authority, signed: Signed) -> None:
        """Keeps a new version; if its epoch keeps all blocks that are here, they continue in that epoch."""
        with self._home.database.write() as connection:
            ledger = Ledger(connection)
            rights = keep_version(connection, self._home.keys, authority, signed, self._clock.now())
            checked = ledger.chain(authority.dataset)
            opened = rights.opened(checked.epoch + 1)
            here = TreeHead(size=checked.frontier.size, root_hash=checked.frontier.root)
            # Only if no block is dropped: otherwise ``checked`` would count blocks that the new epoch does not keep.
            if opened is not None and opened.base == here:
                ledger.keep_chain(authority.dataset, CheckedChain(checked.frontier, checked.data, opened.number))
        note_version(self._home.keys, authority, signed)


def epoch_view(epoch: Epoch) -> wire.EpochView:
    return wire.EpochView(number=epoch.number, reason=epoch.reason, kept=epoch.base.size, ended=epoch.last.size)


def draft_view(rights: Rights, authority: Authority) -> wire.AuthorityDraft:
    """Shows the draft of the version after ``rights``, which roots are to sign."""
    opened = authority.epochs[-1] if authority.epochs and authority.epochs[-1].number > rights.epoch else None
    return wire.AuthorityDraft(
        payload=base64.b64encode(statement.encode(authority)).decode(),
        version=authority.version,
        roots=tuple(str(key) for key in sorted(rights.roots.union(authority.roots.keys))),
        writers=tuple(
            wire.WriterView(key=str(writer.key), expires_at=writer.expires_at) for writer in authority.writers
        ),
        opens=None if opened is None else epoch_view(opened),
    )


def draft_of(entry: DatasetEntry, payload: str) -> tuple[Authority, bytes]:
    """Returns the authority in a draft that a client sends back, with its bytes. Raises Invalid."""
    raw = _base64(payload, "payload")
    said = statement.decode_any(raw)
    if not isinstance(said, Authority) or said.dataset != entry.id:
        raise Invalid(f"not an authority of {entry.name}", rule="authority-draft", hint="ask for a draft of it")
    return said, raw


def signatures_of(texts: Iterable[wire.SignatureText]) -> list[tuple[KeyDid, bytes]]:
    """Decodes signatures. Raises Invalid."""
    return [(KeyDid.parse(text.key), _base64(text.signature, "signature")) for text in texts]


def _base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Invalid(f"the {what} is not base64", rule="request") from error
