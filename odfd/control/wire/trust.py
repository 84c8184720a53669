"""Defines values about verification, trust in datasets, validators and policy."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from odfd.control.wire.pins import UnheldPin
from odfd.control.wire.value import Request, Value


class VerifyRequest(Request, frozen=True, kw_only=True):
    level: Literal["chain", "data", "reproduced"] = "data"
    from_block: int = 0
    full: bool = False
    """Whether to forget earlier verifications."""


class FailedBlock(Value, frozen=True, kw_only=True):
    hash: str | None
    sequence_number: int | None


class Failure(Value, frozen=True, kw_only=True):
    block: FailedBlock
    rule: str
    message: str
    expected: Any = None
    actual: Any = None


class Checked(Value, frozen=True, kw_only=True):
    """Counts of checked parts."""

    blocks: int = 0
    slices: int = 0
    bytes: int = 0
    """Bytes of objects, each of which was hashed."""
    transforms: int = 0
    remembered: int = 0
    """Number of ``blocks`` whose rows were verified before and not read again."""
    not_held: int = 0
    """Slices that a mirror of the newest data does not keep, and that were not checked."""
    to_come: int = 0
    """Slices that a mirror is still fetching, and that were not checked."""
    portal: str = ""
    """The rule of a portal, against which all its rows were checked; empty for other datasets."""


class VerifyReport(Value, frozen=True, kw_only=True):
    """The result of the task ``verify``, and of ``odfctl verify``."""

    ref: str
    dataset_id: str
    head: str | None
    blocks: int
    level: str
    ok: bool
    checked: Checked
    failures: tuple[Failure, ...] = ()


class ProveRequest(Request, frozen=True, kw_only=True):
    dry_run: bool = False
    """Whether to compare only, and record nothing."""


class ProvenEngine(Value, frozen=True, kw_only=True):
    name: str
    version: str
    digest: str


class ProofReport(Value, frozen=True, kw_only=True):
    """The result of the task ``prove``: whether this node's engine reproduces the history of another one."""

    ref: str
    dataset_id: str
    head: str | None
    """Hash of the last block compared."""
    engine: ProvenEngine
    before: str | None = None
    """Digest that was pinned before; ``null``: none was."""
    pinned: tuple[str, ...] = ()
    """Digests of the engines that made the history, as its transforms state."""
    transforms: int = 0
    ok: bool
    failures: tuple[Failure, ...] = ()
    recorded: str | None = None
    """The block that pins this engine from now on; ``null``: none, or only the owner may record one."""


class Reach(Value, frozen=True, kw_only=True):
    """Blocks, from the first on, within reach of a purpose: ``3`` means blocks 0, 1 and 2; ``0`` means none."""

    use: int
    serve: int


class Why(Value, frozen=True, kw_only=True):
    """Why the reach ends: the rule, the block and the statements."""

    rule: str
    block: int | None = None
    sids: tuple[str, ...] = ()
    message: str = ""


class Attested(Value, frozen=True, kw_only=True):
    have: int
    needed: int


class TrustFacts(Value, frozen=True, kw_only=True):
    reproduced: bool = False
    attested: Attested | None = None
    witnessed: bool | None = None
    met: str | None = None
    """First contact of a mirror: ``expected``, ``witnessed``, ``networks`` (three had the same), ``first-sight``."""
    fresh: bool | None = None
    forked: bool = False
    observed: Attested | None = None
    """Groups that found the newest block of data at its source; ``null``: not observed and not required."""
    ahead: bool = False
    """Whether the newest head was signed at a time ahead of the node's clock; then it is not fresh."""


class AttestationView(Value, frozen=True, kw_only=True):
    validator: str
    group: str | None = None
    spans: tuple[str, ...] = ()
    """``reproduced 0-13``, ``mismatch at #7``."""
    at: str | None = None
    engine: str | None = None
    platform: str | None = None


class ObservationView(Value, frozen=True, kw_only=True):
    """An observer's result at the declared source of a block."""

    observer: str
    group: str | None = None
    block: int
    result: str
    at: str


class WitnessView(Value, frozen=True, kw_only=True):
    """How far a witness cosigned the history here; it counts, or is asked to cosign."""

    witness: str
    """``did:key:…`` of the witness."""
    name: str
    """Name of its group, or the name that a public witness gives itself."""
    counts: bool
    """Whether its group is listed here."""
    size: int | None = None
    """Number of blocks in its last cosignature of this epoch, whether or not it is of the history here."""
    at: str | None = None
    trouble: str = ""
    """Reason why it did not cosign at the last request."""
    log_key: str = ""
    """With a trouble: the key that the operator of a public witness must list for this dataset's epoch."""


class CellView(Value, frozen=True, kw_only=True):
    """One difference between the published and the computed data."""

    block: int
    row: int
    column: str
    published: Any = None
    computed: Any = None
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    """Other columns of the row, to identify it."""


class EvidenceView(Value, frozen=True, kw_only=True):
    id: str
    kind: str
    """``mismatch``, ``fork`` or another verdict of this node."""
    dataset: str
    bundle: str | None = None
    """Id of a file that proves it to anyone: ``odfctl trust evidence``, then ``odfctl trust recheck``."""
    block: int | None = None
    at: str | None = None
    message: str = ""
    cells: tuple[CellView, ...] = ()
    kept: bool = True
    """Whether the file is here; else ``odfctl trust evidence ID --fetch`` asks peers for it."""
    recheck: str | None = None
    """Result of this node's own run from the file; ``None``: there was none.

    ``confirmed``, ``refuted``, ``incomplete``, ``unable``, or ``unfit`` for a file that is no evidence.
    """
    sides: tuple[SideView, ...] = ()
    """For a fork: the histories that the same key signed."""


class SideView(Value, frozen=True, kw_only=True):
    """One of the histories of a fork."""

    block: str
    """Hash of its block at the place where they part."""
    head: HeadView
    """The signed head that proves it."""
    held: bool
    """Whether it is the history that is here."""


class EvidenceFetched(Value, frozen=True, kw_only=True):
    """The result of the task ``evidence``, which is stored here now."""

    id: str
    size: int
    """Bytes of the file."""


class ChoiceView(Value, frozen=True, kw_only=True):
    """An option for the operator: ``odfctl trust resolve REF --follow HASH``."""

    hash: str
    message: str


class DecisionView(Value, frozen=True, kw_only=True):
    """The operator's decision on a dataset of this node."""

    at: str
    matter: str
    """``branch``, ``verdict``, ``version``, ``epoch`` or ``abandoned``."""
    hash: str
    block: int | None = None
    by: Literal["person", "witnesses"] = "person"


class ResolveRequest(Request, frozen=True, kw_only=True):
    """A resolution: either of the two fields."""

    follow: str | None = None
    """A block, a head's block, or a version of the authority; ``f1620…``."""
    abandon: bool = False


class Resolved(Value, frozen=True, kw_only=True):
    ref: str
    dataset_id: str
    settles: tuple[str, ...]


class HeadView(Value, frozen=True, kw_only=True):
    """A recorded signed head of a chain."""

    signer: str
    epoch: int
    blocks: int
    hash: str
    issued_at: str
    expires_at: str
    upper: str | None = None
    """Earlier times are complete, as the head says; ``None``: it says nothing of times after its last block."""


class IncidentView(Value, frozen=True, kw_only=True):
    at: str
    kind: str
    """Of the event that told it: docs/reference/metrics.md lists all."""
    message: str


class TrustView(Value, frozen=True, kw_only=True):
    ref: str
    dataset_id: str
    head: str | None = None
    epoch: int = 0
    signed_at: str | None = None
    blocks: int = 0
    reach: Reach
    why: Why | None = None
    facts: TrustFacts
    attestations: tuple[AttestationView, ...] = ()
    dissent: tuple[AttestationView, ...] = ()
    unlisted: int = 0
    """Number of validators that attested it and are in no listed group."""
    observations: tuple[ObservationView, ...] = ()
    """Observations of the newest observed block."""
    witnesses: tuple[WitnessView, ...] = ()
    evidence: tuple[EvidenceView, ...] = ()
    choices: tuple[ChoiceView, ...] = ()
    """Options that wait for a person's decision."""
    heads: tuple[HeadView, ...] = ()
    """The newest heads recorded here, newest first, accepted or not."""
    unsigned: str = ""
    """Reason why this node, which publishes it, signs no head of it now; empty: it does."""
    decisions: tuple[DecisionView, ...] = ()
    past: tuple[IncidentView, ...] = ()
    """What was found wrong with it and what was decided, newest first, also of blocks that were given up since."""
    witnesses_to_spare: int | None = None
    """For a dataset of this node: witness groups that cosign beyond the required ones. ``null``: none required."""
    withdrawn_at: str | None = None
    """Time at which its publisher signed that it shows it no more; null: it did not, or it is this node's own."""
    unheld: tuple[UnheldPin, ...] = ()
    """Its blocks whose engine is not here, newest first."""
    shards: tuple[TrustView, ...] = ()
    """The other shards of a dataset of several; what stands beside is of the first."""


class ValidatorState(Value, frozen=True, kw_only=True):
    """The present state of a Validator."""

    suspended: bool = False
    """Whether its group does not count until a person lifts that."""
    reason: str = ""


class LiftRequest(Request, frozen=True, kw_only=True):
    group: str


class NetworkRulesView(Value, frozen=True, kw_only=True):
    """One known version of a network's policy."""

    sid: str
    network: str
    version: int
    issued_at: str
    state: Literal["accepted", "in force", "waiting"]
    """``in force``: it only tightens, and so holds entirely."""
    waiting: tuple[str, ...] = ()
    """Parts that hold only once a person accepts this version."""


class WitnessRulesRequest(Request, frozen=True, kw_only=True):
    """A network's rules on witnesses: whose cosignatures count, and how many make a head witnessed."""

    groups: dict[str, str] | None = None
    """Key of each group, by its name."""
    f: int | None = None
    quorum: int | None = None
    max_age: str | None = None


class NetworkRulesRequest(Request, frozen=True, kw_only=True):
    """The new policy of the network whose key this node holds; each node decides what it omits."""

    use: str | None = None
    serve: str | None = None
    groups: dict[str, tuple[str, ...]] | None = None
    f: int | None = None
    min_engines: int | None = None
    min_sandbox: str | None = None
    max_stale: str | None = None
    witness: WitnessRulesRequest | None = None
    network: str = ""
    """Network of the policy; empty: the only one that is joined."""


class AcceptRequest(Request, frozen=True, kw_only=True):
    sid: str


class DatasetRuleView(Value, frozen=True, kw_only=True):
    """The terms of some datasets, which a TrustPolicy says."""

    name: str
    datasets: tuple[str, ...]
    """Patterns of names."""
    use: str | None = None
    serve: str | None = None


class PolicyView(Value, frozen=True, kw_only=True):
    """The policy in force, and the source of each part."""

    profile: str
    use: str
    serve: str
    groups: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    publish: tuple[str, ...] = ()
    """Actions of this node: ``attest``, ``cosign``, ``gossip``."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    rules: tuple[DatasetRuleView, ...] = ()
    """Terms of some datasets; the first that fits decides."""
    notes: tuple[str, ...] = ()
    """Promises that these rules cannot keep."""
    network: tuple[NetworkRulesView, ...] = ()
    """Versions that the network signed: the one that a person accepted, and later ones."""
