"""Groups what a component needs of the node to sign its own findings: database, keys, clock, and announcement."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from chain.ids import DatasetId
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.store.database import Database
from odfd.obs.events import EventLog
from odfd.runtime.clock import Clock
from odfd.runtime.supervision import Logger
from odfd.store.keys.keystore import KeyStore
from odfd.store.visibility import PublicOf


class SignerContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of its node that a validator or an observer needs."""

    database: Database
    keys: KeyStore
    events: EventLog
    clock: Clock
    logger: Logger
    announce: Callable[[DatasetId, Signed], None]
    name_of: Callable[[DatasetId], str]
    public_of: PublicOf
    own_key: SigningKey | None = None
    """The key that signs verdicts and observations; ``None``: the node's."""

    @property
    def verdict_key(self) -> SigningKey:
        return self.own_key or self.keys.node_key()
