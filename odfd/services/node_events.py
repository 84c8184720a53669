"""Lists what the features of a node tell each other on its bus (``odfd.runtime.bus``).

New statements are published as ``odfd.network.statement_store.NewStatement``, tasks as in ``odfd.runtime.tasks``. Where
nothing else is said, events are published in the event loop, or before it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.ids import DatasetId
from chain.statements.cosignature import Cosignature
from chain.statements.envelope import Signed
from chain.statements.proof import Proof
from chain.statements.statement import AnyPredicate
from config.model import Settings
from odfd.store.damage import DamagedBlock


@dataclass(frozen=True, slots=True)
class DatabaseWritten:
    """A transaction changed something. Published by the thread that wrote."""


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Other settings are in force."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy is in force."""


@dataclass(frozen=True, slots=True)
class EngineChanged:
    """An engine, or the reason why there is none, was found."""


@dataclass(frozen=True, slots=True)
class PeersMet:
    """There are new peers, so that what found none may be tried again."""


@dataclass(frozen=True, slots=True)
class JournalsRecovered:
    """Keys whose signing journals were lost may sign again."""


@dataclass(frozen=True, slots=True)
class ApplyEnded:
    """An apply is recorded; events of what it did may have come before."""


@dataclass(frozen=True, slots=True)
class ResourceTouched:
    """A resource, which may not be declared, may have another state."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class AboutDataset:
    """Something happened to one dataset."""

    dataset: DatasetId


class DatasetDescribed(AboutDataset):
    """A dataset may have another name, account, volume or labels, by which others select it."""


class DatasetMoved(AboutDataset):
    """A chain of others has other blocks here, or one of this node was rewritten."""


class HoldReleased(AboutDataset):
    """Readers hold its history no longer."""


class VisibilityChanged(AboutDataset):
    """It was published, made private, added or removed. Published by any thread."""


@dataclass(frozen=True, slots=True)
class StatementSigned(AboutDataset):
    """This node signed a statement on it. Published by the thread that committed."""

    signed: Signed


@dataclass(frozen=True, slots=True)
class SliceDamaged(AboutDataset):
    """Bytes of a block do not match their hash. Published by the thread that was to read them."""

    spot: DamagedBlock


@dataclass(frozen=True, slots=True)
class DamageFound(AboutDataset):
    """Damage was recorded. Published by the thread that found it."""

    spot: DamagedBlock


@dataclass(frozen=True, slots=True)
class StatementHeard(AboutDataset):
    """A statement that contradicts no other was added."""

    predicate: AnyPredicate


@dataclass(frozen=True, slots=True)
class ProofKept:
    """A proof against keys was added. Published by the thread that judged it."""

    proof: Proof
    is_made_here: bool


@dataclass(frozen=True, slots=True)
class CosignatureHeard:
    """A witness that counts here cosigned a tree. Published by any thread."""

    cosignature: Cosignature
