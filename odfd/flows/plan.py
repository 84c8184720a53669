"""Declares flows as values: those that people write, and those of derived datasets that follow their inputs."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from odfd.access.relations import Action
from odfd.flows.schedule import Covered, Schedule

MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


class CatchUp(enum.Enum):
    """Says which of the times missed during downtime are acted on."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Retries of a run that failed for a temporary reason. Durations are nanoseconds."""

    attempts: int = 3
    """Most attempts for one nominal time."""
    least: int = 10 * SECOND
    most: int = HOUR


class FlowPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of the runs of one flow. Durations are nanoseconds."""

    suspend: bool = False
    catch_up: CatchUp = CatchUp.ONE
    window: int = DAY
    """Nanoseconds up to which a passed time is caught up."""
    cooldown: int = MINUTE
    """Nanoseconds from the end of a run to the next one that new data causes."""
    retry: Retry = Retry()


class Ingest(msgspec.Struct, frozen=True, kw_only=True, tag="Ingest"):
    """Pulls the dataset, as ``odfctl pull`` does."""

    fetch_uncacheable: bool = False
    source: str | None = None
    """Key of the flow's reference to a Source; ``None`` for the dataset's own source."""


class Verify(msgspec.Struct, frozen=True, kw_only=True, tag="Verify"):
    """Checks the dataset, as ``odfctl verify`` does."""

    level: Literal["chain", "data", "reproduced"] = "data"


class PushTo(msgspec.Struct, frozen=True, kw_only=True, tag="Push"):
    """Pushes the dataset, if it is published, as ``odfctl push`` does."""

    to: str
    """Key of the flow's reference to the repository."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True, tag="Compaction"):
    """Merges its slices, as ``odfctl compact`` does; ``None`` stands for the limits of that command."""

    max_slice_bytes: int | None = None
    max_slice_rows: int | None = None


class GarbageCollection(msgspec.Struct, frozen=True, kw_only=True, tag="GarbageCollection"):
    """Frees the objects that no dataset of the node needs, as ``odfctl gc`` does."""


class WebhookCall(msgspec.Struct, frozen=True, kw_only=True, tag="WebhookCall"):
    """Calls a WebhookTarget."""

    target: str
    """Key of the flow's reference to the WebhookTarget."""
    payload: str | None = None


FlowTask: TypeAlias = Ingest | Verify | PushTo | Compaction | GarbageCollection | WebhookCall


def needed_on_target(tasks: Sequence[FlowTask]) -> Action:
    """Returns the action on the target to which the account of some tasks needs a right."""
    if any(isinstance(each, Compaction | PushTo) for each in tasks):
        return Action.OWN
    return Action.WRITE if any(isinstance(each, Ingest | Verify) for each in tasks) else Action.READ


def acted_on(tasks: Sequence[FlowTask]) -> Iterator[tuple[str, Action]]:
    """Yields the keys of what tasks act on beside their target, each with the action on it that needs a right.

    To take from a Source is to use its networks, files and secrets, and a call is signed with the secret of its target:
    both are more than to read that.
    """
    for each in tasks:
        match each:
            case Ingest(source=str(key)) | PushTo(to=key) | WebhookCall(target=key):
                yield key, Action.WRITE
            case _:
                pass


def collects(tasks: Sequence[FlowTask]) -> bool:
    """Whether a task frees objects of the whole node, which no account has a right to."""
    return any(isinstance(each, GarbageCollection) for each in tasks)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """The condition on records pushed to a Source under which a flow runs."""

    source: str
    """Key of the flow's reference to the Source."""
    least: int = 1
    """Number of records that make it run."""
    longest: int = HOUR
    """Nanoseconds after which even one record makes it run."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the datasets that a flow is for, by name and labels."""

    name: str
    """A pattern: ``%`` stands for any text, ``_`` for one character."""
    labels: str | None = None
    """A selector of labels, as it is written after ``-l``."""

    def __str__(self) -> str:
        return self.name if self.labels is None else f"{self.name} ({self.labels})"


class FlowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Says which tasks a dataset gets, and when: by a schedule, or at new data of others, of Sources or of itself."""

    id: str = ""
    """Id of the Flow or Task that declares it, and has the references of its tasks; empty without one."""
    name: str
    """The name for people: of the flow, or of the dataset that follows its inputs."""
    target: DatasetId
    schedule: Schedule | None = None
    inputs: frozenset[DatasetId] = frozenset()
    """Datasets whose new data makes it run."""
    on_update: bool = False
    """Whether new blocks of the target itself make it run, except those that a run of it wrote."""
    arrivals: tuple[Arrival, ...] = ()
    """Pushes to Sources that make it run."""
    tasks: tuple[FlowTask, ...] = (Ingest(),)
    """Tasks in order; the first that does not end well ends the run."""
    policy: FlowPolicy = FlowPolicy()
    selection: Selection | None = None
    """The selection by which the target was selected; ``None`` for a flow of one dataset."""
    declared: bool = True
    """Whether it was declared; otherwise it stands for a derived dataset that follows its inputs."""

    @property
    def watched(self) -> frozenset[DatasetId]:
        """The datasets whose news make it run."""
        return self.inputs | {self.target} if self.on_update else self.inputs

    @property
    def needs(self) -> Action:
        """The action on the target to which the account of the flow needs a right."""
        return needed_on_target(self.tasks)

    @property
    def pulls(self) -> bool:
        """Whether a run may bring data."""
        return any(isinstance(each, Ingest) for each in self.tasks)


class Outcome(enum.Enum):
    """How a run ended."""

    UPDATED = "updated"
    UP_TO_DATE = "up-to-date"
    BLOCKED = "blocked"
    """Without fault, but it waits for another party."""
    FAILED = "failed"
    """Failed for a reason that may pass, so that it is tried again."""
    REFUSED = "refused"
    """Failed for a reason that stays until something is changed."""
    CANCELLED = "cancelled"


BAD: Final = frozenset({Outcome.FAILED, Outcome.REFUSED})


MOST_OWED: Final = 1_000


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The record of the runs of one plan, kept over restarts.

    Its size does not grow with the runs, except for ``owed``, which has at most ``MOST_OWED`` times.
    """

    since: Instant
    """Times before this are not made up for."""
    covered: Covered = Covered()
    pending: Instant | None = None
    """The time that a run began for which has not ended well and is not given up."""
    attempts: int = 0
    """Failed attempts for the pending time."""
    owed: tuple[Instant, ...] = ()
    """Past times that a person asked to make up for, oldest first; they count as fired."""
    retry_at: Instant | None = None
    paused: bool = False
    runs: int = 0
    failures: int = 0
    """Failed runs in a row."""
    missed: int = 0
    """Number of nominal times that were passed over."""
    began_at: Instant | None = None
    ended_at: Instant | None = None
    outcome: Outcome | None = None
    message: str = ""
    seen: str | None = None
    """For flows triggered by new blocks: the hash of the head that the last good run saw or wrote."""
