"""Declares flows as values: those that people write, and those of derived datasets that follow their inputs. Pure.

A flow of a selection is one plan for each selected dataset, with its own runs and record; datasets that appear later
join by themselves. A flow that only collects garbage has no dataset of its own, and is one plan for all.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from chain.backoff import Backoff, Chance
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from odfd.access.relations import Action
from odfd.flows.schedule import Covered, Schedule
from odfd.flows.spec import (
    CompactionTask,
    GarbageCollectionTask,
    IngestTask,
    PullTask,
    PushTask,
    ResetTask,
    SyncFromTask,
    SyncToTask,
    TaskSpec,
    TransformTask,
    VerifyChainTask,
    VerifyTask,
)
from odfd.resources.selectors import Selection

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
    backoff: Literal["None", "Linear", "Exponential"] = "Exponential"
    is_declared: bool = False
    """Whether a person set it: then runs that news causes have no more attempts either."""

    def wait(self, attempts: int, chance: Chance) -> int:
        """Returns the pause after so many failed attempts."""
        match self.backoff:
            case "None":
                return min(self.least, self.most)
            case "Linear":
                return min(self.least * attempts, self.most)
            case "Exponential":
                return int(Backoff(first=self.least / SECOND, most=self.most / SECOND).wait(attempts, chance) * SECOND)


class FlowPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of the runs of one flow. Durations are nanoseconds."""

    suspend: bool = False
    catch_up: CatchUp = CatchUp.ONE
    window: int = DAY
    """Nanoseconds up to which a passed time is caught up."""
    cooldown: int = MINUTE
    """Nanoseconds from the end of a run to the next one that new data causes."""
    retry: Retry = Retry()


INGESTS: Final = (IngestTask, PullTask, TransformTask)
"""The classes of tasks that take or derive records."""
BRINGS: Final = (*INGESTS, SyncFromTask)
"""The classes of tasks that may bring data to their dataset."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a plan: as it is declared, with what its references mean."""

    said: TaskSpec
    dataset: DatasetId | None = None
    """The dataset, if it is not the target of the flow."""
    on: str | None = None
    """Key of the flow's reference to that dataset."""
    uses: str | None = None
    """Key of the flow's reference to the Source, the Repository or the WebhookTarget of the task."""
    retry: Retry | None = None
    """Retries of its failures; ``None`` for those of the flow."""


def needed_on_target(tasks: Sequence[Step]) -> Action:
    """Returns the action on the target to which the account of some tasks needs a right."""
    kinds = tuple(task.said for task in tasks)
    if any(isinstance(kind, CompactionTask | PushTask | ResetTask | SyncToTask) for kind in kinds):
        return Action.OWN
    return (
        Action.WRITE if any(isinstance(kind, (*BRINGS, VerifyTask, VerifyChainTask)) for kind in kinds) else Action.READ
    )


def acted_on(tasks: Sequence[Step]) -> Iterator[tuple[str, Action]]:
    """Yields the keys of what tasks act on beside their target, each with the action on it that needs a right.

    To take from a Source is to use its networks, files and secrets, and a call is signed with the secret of its target:
    both are more than to read that.
    """
    for key in {task.on for task in tasks if task.on is not None}:
        yield key, needed_on_target([task for task in tasks if task.on == key])
    for task in tasks:
        if task.uses is not None:
            yield task.uses, Action.WRITE


def of_the_node(tasks: Sequence[Step]) -> str | None:
    """Returns what a task does that no account has a right to, in words that follow ``to``; else ``None``."""
    if any(isinstance(task.said, GarbageCollectionTask) for task in tasks):
        return "collect garbage, which is of the whole node"
    if any(isinstance(task.said, SyncFromTask | SyncToTask) for task in tasks):
        return "sync with other nodes, which is in the node's name"
    return None


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """The condition on records pushed to a Source under which a flow runs."""

    source: str
    """Key of the flow's reference to the Source."""
    least: int = 1
    """Number of records that make it run."""
    longest: int = HOUR
    """Nanoseconds after which even one record makes it run."""
    cooldown: int = 0
    """Nanoseconds from the end of a run to the next one that it causes."""


class Follows(msgspec.Struct, frozen=True, kw_only=True):
    """The condition on new data of the inputs of a derived dataset under which a flow runs."""

    dataset: DatasetId | None = None
    """The derived dataset; ``None`` for the target."""
    least: int = 1
    """Number of records that make it run."""
    longest: int = HOUR
    """Nanoseconds after which even one record makes it run."""
    cooldown: int = MINUTE


TIMES: Final = "times"
TARGET: Final = "target"
"""Stand for all times of a plan's schedule, and for its target, where its cooldowns are told."""


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
    follows: Follows | None = None
    """Runs at new data of the inputs of a derived dataset, which ``inputs`` has once that dataset was read."""
    batched: frozenset[DatasetId] = frozenset()
    """Those of ``inputs`` whose records are awaited in number."""
    on_update: bool = False
    """Whether new blocks of the target itself make it run, except those that a run of it wrote."""
    on_request: bool = True
    """Whether people may run it."""
    arrivals: tuple[Arrival, ...] = ()
    """Pushes to Sources that make it run."""
    cooldowns: Mapping[str, int] = {}
    """Nanoseconds between two runs with one cause, if not the policy's: by the did of a dataset, or for ``TIMES`` or
    ``TARGET``."""
    tasks: tuple[Step, ...] = (Step(said=PullTask()),)
    """Tasks in order; the first that does not end well ends the run."""
    policy: FlowPolicy = FlowPolicy()
    selection: Selection | None = None
    """The selection by which the target was selected; ``None`` for a flow of one dataset."""
    declared: bool = True
    """Whether it was declared; otherwise it stands for a derived dataset that follows its inputs."""
    is_inside: bool = False
    """Whether the target is inside of a collection, so that it is no flow that is listed or counted."""

    @property
    def watched(self) -> frozenset[DatasetId]:
        """The datasets whose news make it run."""
        return self.inputs | {self.target} if self.on_update else self.inputs

    @property
    def needs(self) -> Action:
        """The action on the target to which the account of the flow needs a right, by its tasks."""
        return needed_on_target([task for task in self.tasks if task.dataset in (None, self.target)])

    @property
    def pulls(self) -> bool:
        """Whether a run may bring data to the target."""
        return any(isinstance(task.said, BRINGS) and task.dataset in (None, self.target) for task in self.tasks)

    def cooldown(self, cause: str) -> int:
        """Returns the nanoseconds between two runs with a cause."""
        key = TARGET if cause == str(self.target) else cause
        return self.cooldowns.get(key, 0 if key == TIMES else self.policy.cooldown)


Kind: TypeAlias = Literal["Success", "NoOp", "Failed", "Cancelled"]


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

    @property
    def kind(self) -> Kind:
        """The outcome in RFC-019's words."""
        return _KINDS.get(self, "Failed")

    @property
    def is_recoverable(self) -> bool | None:
        """Whether a retry could succeed; ``None`` if it did not fail."""
        return None if self in _KINDS else self is not Outcome.REFUSED

    @property
    def told(self) -> Mapping[str, Any]:
        """The outcome as RFC-019's ``TaskOutcome`` has it."""
        recoverable = self.is_recoverable
        return {"kind": self.kind} | ({} if recoverable is None else {"recoverable": recoverable})


_KINDS: Final[Mapping[Outcome, Kind]] = {
    Outcome.UPDATED: "Success",
    Outcome.UP_TO_DATE: "NoOp",
    Outcome.CANCELLED: "Cancelled",
}
BAD: Final = frozenset({Outcome.FAILED, Outcome.REFUSED})


MOST_OWED: Final = 1_000
RECORDS: Final = "records"
REQUEST: Final = "request"
"""Stand for records that are awaited in number, and for a person, where what caused a run is told."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger of a run: a time, news, or a person."""

    at: Instant
    what: str
    """``TIMES``, ``RECORDS``, ``REQUEST``, or the did of a dataset with news."""
    by: str | None = None
    """Id of the account that asked, empty for the node's owner; ``None``: nobody did, or it is not known."""


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
    run: str = ""
    """Id of the run under way, which one that was cut off goes on with; empty between two."""
    retried: str = ""
    """Id of the failed run for the pending time that the next one repeats; empty if it failed not yet."""
    owed: tuple[Instant, ...] = ()
    """Past times that a person asked to make up for, oldest first; they count as fired."""
    asked: Mapping[Instant, str] = {}
    """By time of ``owed``: id of the account that asked, empty for the node's owner."""
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


EVERY: Final = DatasetId.from_public_key(bytes(32))
"""Stands for the target of a selection, which is not one dataset."""


def is_one_for_all(plan: FlowPlan) -> bool:
    """Whether the plan is run once, and not for each selected dataset."""
    return not plan.on_update and all(isinstance(task.said, GarbageCollectionTask) for task in plan.tasks)


def is_template(plan: FlowPlan) -> bool:
    """Whether the plan is not run itself, but has a plan for each selected dataset."""
    return plan.selection is not None and plan.target == EVERY and not is_one_for_all(plan)


def for_dataset(plan: FlowPlan, dataset: DatasetId) -> FlowPlan:
    """Returns a selection's plan for one dataset, whose own news never make it pull itself."""
    return msgspec.structs.replace(plan, target=dataset, inputs=plan.inputs - {dataset})
