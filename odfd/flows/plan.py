"""Declares flows: those that people write, and those of derived datasets that follow their inputs. Values."""

from __future__ import annotations

import enum
from typing import Final, Literal, TypeAlias

import msgspec

from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from odfd.flows.schedule import Covered, Schedule

MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


class CatchUp(enum.Enum):
    """Selects the times missed during downtime that are acted on."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Retries of a run that failed for a temporary reason. Durations are nanoseconds."""

    attempts: int = 3
    """In all, of one nominal time."""
    least: int = 10 * SECOND
    most: int = HOUR


class FlowPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of the runs of one flow. Durations are nanoseconds."""

    suspend: bool = False
    catch_up: CatchUp = CatchUp.ONE
    window: int = DAY
    """How old a time may be that is caught up."""
    cooldown: int = MINUTE
    """From the end of a run to the next that new data causes."""
    retry: Retry = Retry()


class Ingest(msgspec.Struct, frozen=True, kw_only=True, tag="Ingest"):
    """Pulls the dataset, as ``odfctl pull`` does."""

    fetch_uncacheable: bool = False
    source: str | None = None
    """The key of the reference to a Source, of which the flow's resource says what it means; the dataset's own."""


class Verify(msgspec.Struct, frozen=True, kw_only=True, tag="Verify"):
    """Checks the dataset, as ``odfctl verify`` does."""

    level: Literal["chain", "data", "reproduced"] = "data"


class PushTo(msgspec.Struct, frozen=True, kw_only=True, tag="Push"):
    """Pushes the dataset, if it is published, as ``odfctl push`` does."""

    to: str
    """The key of the reference to the repository."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True, tag="Compaction"):
    """Merges its slices, as ``odfctl compact`` does. ``None``: the limits of that."""

    max_slice_bytes: int | None = None
    max_slice_rows: int | None = None


class GarbageCollection(msgspec.Struct, frozen=True, kw_only=True, tag="GarbageCollection"):
    """Frees what no dataset of the node needs, as ``odfctl gc`` does."""


class WebhookCall(msgspec.Struct, frozen=True, kw_only=True, tag="WebhookCall"):
    """Calls a WebhookTarget."""

    target: str
    """The key of the reference to it, of which the flow's resource says what it means."""
    payload: str | None = None


FlowTask: TypeAlias = Ingest | Verify | PushTo | Compaction | GarbageCollection | WebhookCall


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Records that were pushed to a Source, and are waited for."""

    source: str
    """The key of the reference to it, of which the flow's resource says what it means."""
    least: int = 1
    """So many records make it run."""
    longest: int = HOUR
    """Nanoseconds: or one record that is so old."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the datasets that a flow is for."""

    name: str
    """A pattern: ``%`` stands for any text, ``_`` for one character."""
    labels: str | None = None
    """As they are written after ``-l``."""

    def __str__(self) -> str:
        return self.name if self.labels is None else f"{self.name} ({self.labels})"


class FlowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks for a dataset, and when: by a schedule, at news of others or of itself, or several of them."""

    name: str
    """For people: of the flow, or of the dataset that follows its inputs."""
    target: DatasetId
    schedule: Schedule | None = None
    inputs: frozenset[DatasetId] = frozenset()
    """Datasets whose new data makes it run."""
    on_update: bool = False
    """Whether new blocks of the target itself make it run, save those that a run of it wrote."""
    arrivals: tuple[Arrival, ...] = ()
    """Pushes that make it run."""
    tasks: tuple[FlowTask, ...] = (Ingest(),)
    """In order; the first that does not end well ends the run."""
    policy: FlowPolicy = FlowPolicy()
    selection: Selection | None = None
    """That the target is one of."""
    by: str = "Flow"
    """The type of the resource of its name, whose references its tasks mean."""
    declared: bool = True
    """Whether it was declared; else it is a derived dataset that follows its inputs."""

    @property
    def watched(self) -> frozenset[DatasetId]:
        """The datasets of which news make it run."""
        return self.inputs | {self.target} if self.on_update else self.inputs

    @property
    def pulls(self) -> bool:
        """Whether a run may bring data."""
        return any(isinstance(each, Ingest) for each in self.tasks)


class Outcome(enum.Enum):
    """The end of a run."""

    UPDATED = "updated"
    UP_TO_DATE = "up-to-date"
    BLOCKED = "blocked"
    """No fault, and it waits for another party."""
    FAILED = "failed"
    """For a reason that may pass: it is tried again."""
    REFUSED = "refused"
    """For a reason that stays until something is changed."""
    CANCELLED = "cancelled"


BAD: Final = frozenset({Outcome.FAILED, Outcome.REFUSED})


MOST_OWED: Final = 1_000


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The record of the runs of one plan, over restarts. Its size does not grow with them.

    Only ``owed`` does, up to ``MOST_OWED``.
    """

    since: Instant
    """Nothing is owed of times before this."""
    covered: Covered = Covered()
    pending: Instant | None = None
    """The time that a run is for which began and has not ended well, or been given up."""
    attempts: int = 0
    """Of it that failed."""
    owed: tuple[Instant, ...] = ()
    """Past times that a person asked to make up for, oldest first; they count as fired."""
    retry_at: Instant | None = None
    paused: bool = False
    runs: int = 0
    failures: int = 0
    """Runs in a row that failed."""
    missed: int = 0
    """Nominal times that were passed over."""
    began_at: Instant | None = None
    ended_at: Instant | None = None
    outcome: Outcome | None = None
    message: str = ""
    seen: str | None = None
    """For flows that new blocks trigger: the hash of the head that the last good run saw, or wrote."""
