"""Declares the specs of Flow and Task, as RFC-019 has them. Values: ``odfd.flows.manifest`` judges them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.model.wire import U32, U64, Scalar
from odfd.flows.schedule import UTC, parse_cron, parse_every, parse_zone
from odfd.resources.manifest import describe
from odfd.resources.references import refers_to
from odfd.resources.registry import OURS, VERSION
from odfd.resources.types import IS_OWN, OWN

_DATASET: Final = refers_to("Dataset")
_ACCOUNT: Final = refers_to("Account")
_SERVICE: Final = "The account with whose rights the tasks are done. Default: the account that has it."
LENGTH: Final = msgspec.Meta(extra_json_schema={"format": "duration, such as 90s, 10min, 1h or 1d"})
OWN_TASKS: Final = f"{OURS}/tasks/{VERSION}"
"""Where the kinds of tasks are that RFC-019 does not have; it lets them be named by such URIs."""


class TriggerFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of all triggers."""

    enabled: Annotated[bool, describe("false pauses this trigger. Default: true."), OWN] | None = None
    cooldown: (
        Annotated[
            str,
            describe("Shortest time between two runs that it causes. Default: 1min for news, none for times."),
            LENGTH,
            OWN,
        ]
        | None
    ) = None


class OnRequest(TriggerFields, frozen=True, kw_only=True, tag="Manual"):
    """Lets people run the flow: odfctl flow run."""


class OnSchedule(TriggerFields, frozen=True, kw_only=True, tag="Schedule"):
    """Runs at the times of a cron expression."""

    cron: Annotated[str, describe("Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")]


class OnInterval(TriggerFields, frozen=True, kw_only=True, tag="Interval"):
    """Runs at regular intervals."""

    interval: Annotated[str, describe("An interval. Runs are at its whole multiples since 1970 in UTC."), LENGTH]


class EventType(Enum):
    """An event that may happen to a target."""

    UPDATED = "dataset.ref.updated"


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects events."""

    type: Annotated[EventType, Scalar("int32"), describe("The blocks of a dataset have changed.")]


class OnEvent(TriggerFields, frozen=True, kw_only=True, tag="Event"):
    """Runs when something happens to a dataset, unless a run of this flow did it."""

    target: (
        Annotated[
            str,
            describe("The dataset: its name, Dataset:NAME, did:odf:… or the id of its resource. Default: the target."),
            _DATASET,
            OWN,
        ]
        | None
    ) = None
    events: Annotated[EventFilter, describe("The events that trigger a run.")]
    cooldown: (
        Annotated[str, describe("Shortest time between two runs that it causes. Default: 1min."), LENGTH] | None
    ) = None


class OnInputsUpdated(TriggerFields, frozen=True, kw_only=True, tag="InputsUpdated", rename="camel"):
    """Runs when inputs of a derived dataset have new data."""

    target: Annotated[str, describe("The derived dataset. Default: the target."), _DATASET] | None = None
    min_records_to_await: Annotated[U64, describe("Number of records that trigger a run. Default: 1.")] | None = None
    max_await_interval: (
        Annotated[str, describe("Longest wait for that number, since the oldest record. Default: 1h."), LENGTH] | None
    ) = None


class OnSourceUpdated(TriggerFields, frozen=True, kw_only=True, tag="SourceUpdated", rename="camel"):
    """Runs when records were pushed to the endpoint of a Source."""

    source: Annotated[str, describe("The Source, as Source:NAME, or by its name or id."), refers_to("Source")]
    min_records_to_await: Annotated[U64, describe("Number of records that trigger a run. Default: 1.")] | None = None
    max_await_interval: (
        Annotated[str, describe("Longest wait for that number, since the oldest record. Default: 1h."), LENGTH] | None
    ) = None


OWN_TRIGGERS: Final = frozenset({"Interval", "InputsUpdated", "SourceUpdated"})
"""Triggers of RFC-019's text that its JSON Schemas do not have. Fields of which that is so are marked as ours too."""
TriggerSpec: TypeAlias = OnRequest | OnSchedule | OnInterval | OnEvent | OnInputsUpdated | OnSourceUpdated


class OnNoOp(Enum):
    """Says how a run goes on after a task that had nothing to do."""

    CONTINUE = "Continue"
    BREAK = "Break"


class OnFailure(Enum):
    """Says how a run goes on after a task that failed."""

    FAIL = "Fail"
    CONTINUE = "Continue"


class RetryBackoff(Enum):
    """How the pauses between retries grow."""

    NONE = "None"
    LINEAR = "Linear"
    EXPONENTIAL = "Exponential"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Retries of a run that failed for a reason that may pass."""

    max_attempts: Annotated[U32, describe("1 to 100. Default: 3.")] | None = None
    min_delay: Annotated[str, describe("The first pause. Default: 10s."), LENGTH] | None = None
    backoff: (
        Annotated[
            RetryBackoff,
            Scalar("int32"),
            describe("How pauses grow: None, Linear or Exponential (default)."),
            msgspec.Meta(extra_json_schema={IS_OWN: [RetryBackoff.NONE.value]}),
        ]
        | None
    ) = None


class TaskFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of all tasks."""

    name: Annotated[str, describe("Name of the task in its flow. Default: task-N-KIND.")] | None = None
    target: Annotated[str, describe("The dataset. Default: the target of the flow."), _DATASET] | None = None
    service_account: Annotated[str, describe("The account with whose rights it is done."), _ACCOUNT] | None = None
    on_no_op: (
        Annotated[
            OnNoOp,
            Scalar("int32"),
            describe("In a flow, if there was nothing to do: Continue (default) or Break."),
            OWN,
        ]
        | None
    ) = None
    on_failure: (
        Annotated[OnFailure, Scalar("int32"), describe("In a flow, if it failed: Fail (default) or Continue."), OWN]
        | None
    ) = None


class IngestTask(TaskFields, frozen=True, kw_only=True, tag="Ingest", rename="camel"):
    """Fetches data from a Source into the dataset."""

    source: Annotated[str, describe("The Source, as Source:NAME, or by its name or id."), refers_to("Source")]


class TransformTask(TaskFields, frozen=True, kw_only=True, tag="Transform", rename="camel"):
    """Derives new data of a derived dataset."""


class SyncEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset at another node."""

    url: Annotated[str, describe("odf+https://NODE/ACCOUNT/DATASET.")]


class SyncFromTask(TaskFields, frozen=True, kw_only=True, tag="SyncFrom", rename="camel"):
    """Brings new blocks of a dataset at another node into the dataset."""

    source: Annotated[SyncEndpoint, describe("Where from.")]


class SyncToTask(TaskFields, frozen=True, kw_only=True, tag="SyncTo", rename="camel"):
    """Pushes new blocks of the dataset to another node."""

    destination: Annotated[SyncEndpoint, describe("Where to.")]


class CompactionTask(TaskFields, frozen=True, kw_only=True, tag="Compaction", rename="camel"):
    """Merges slices of the dataset, which must be one of this node's own."""

    max_slice_size: Annotated[str, describe("Largest size, such as 100MiB. Default: 300MB.")] | None = None
    max_slice_records: Annotated[U64, describe("Most records of a slice. Default: 10000.")] | None = None


class ResetTask(TaskFields, frozen=True, kw_only=True, tag="Reset", rename="camel"):
    """Makes an earlier block the head of the dataset, which must be one of this node's own."""

    new_block_hash: Annotated[str, describe("Hash of that block. Default: the Seed.")] | None = None
    old_block_hash: Annotated[str, describe("Hash of the present head; with another one the task fails.")] | None = None


class GarbageCollectionTask(TaskFields, frozen=True, kw_only=True, tag="GarbageCollection", rename="camel"):
    """Deletes objects that no dataset of the node needs any more."""


class VerifyTask(TaskFields, frozen=True, kw_only=True, tag="Verify", rename="camel"):
    """Checks the blocks and the data of the dataset."""

    replay_transform: (
        Annotated[bool, describe("Whether to run every transform again and compare. Default: false.")] | None
    ) = None


class WebhookCallTask(TaskFields, frozen=True, kw_only=True, tag="WebhookCall", rename="camel"):
    """Calls a WebhookTarget, with a signature. A call without a good answer fails the run, which is retried."""

    endpoint: Annotated[
        str, describe("The target, as WebhookTarget:NAME, or by its name or id."), refers_to("WebhookTarget")
    ]
    payload: (
        Annotated[
            str, describe("The body: text with ${{ trigger.event }} and ${{ trigger.time }}. Default: the event.")
        ]
        | None
    ) = None
    retry_policy: Annotated[RetryPolicy, describe("Retries of its failures. Default: that of the flow.")] | None = None


class PullTask(TaskFields, frozen=True, kw_only=True, tag=f"{OWN_TASKS}/Pull", rename="camel"):
    """Does what odfctl pull does: from the source in the dataset's metadata, its inputs, or its publisher."""

    source: (
        Annotated[str, describe("The Source. Default: that in the dataset's metadata."), refers_to("Source")] | None
    ) = None
    fetch_uncacheable: (
        Annotated[
            bool, describe("Whether to fetch also from a web source that does not report whether it has changed.")
        ]
        | None
    ) = None


class PushTask(TaskFields, frozen=True, kw_only=True, tag=f"{OWN_TASKS}/Push", rename="camel"):
    """Pushes the dataset to a repository."""

    to: Annotated[str, describe("The repository, as Repository:NAME, or by its name or id."), refers_to("Repository")]


class VerifyChainTask(TaskFields, frozen=True, kw_only=True, tag=f"{OWN_TASKS}/VerifyChain", rename="camel"):
    """Checks the blocks of the dataset, without its data."""


TaskSpec: TypeAlias = (
    IngestTask
    | TransformTask
    | SyncFromTask
    | SyncToTask
    | CompactionTask
    | ResetTask
    | GarbageCollectionTask
    | VerifyTask
    | WebhookCallTask
    | PullTask
    | PushTask
    | VerifyChainTask
)


class FlowRunSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tasks that are done once, in order."""

    target: Annotated[str, describe("The dataset of tasks that name no other."), _DATASET] | None = None
    service_account: Annotated[str, describe(_SERVICE), _ACCOUNT] | None = None
    tasks: Annotated[tuple[TaskSpec, ...], describe("1 to 8 tasks, done in order.")]


class RetryLimit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A limit of retries that RFC-019's retryPolicy does not have."""

    max_delay: Annotated[str, describe("The longest pause. Default: 1h."), LENGTH] | None = None


class FlowPolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the runs of a flow behave, beside what RFC-019 says."""

    suspend: Annotated[bool, describe("Whether the flow is paused.")] = False
    time_zone: Annotated[str, describe("Time zone of the cron expressions. Default: UTC.")] | None = None
    catch_up: Annotated[str, describe("Which missed times are caught up: one (the latest), all, or none.")] | None = (
        None
    )
    catch_up_window: (
        Annotated[str, describe("How long ago a missed time may be to be caught up. Default: 1d."), LENGTH] | None
    ) = None
    retry: RetryLimit | None = None


class RunsRetention(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How long finished FlowRuns of a flow stay."""

    max_runs: Annotated[U32, describe("Most finished runs: 1 to 100. Default: 10.")] | None = None
    max_age: Annotated[str, describe("Longest time after a run began: at most 366d. Default: 30d."), LENGTH] | None = (
        None
    )


class FlowSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tasks for datasets, and what triggers them."""

    target: Annotated[
        str,
        describe(
            "The dataset of the tasks: Dataset:NAME, NAME, did:odf:… or the id of its resource; or a selector of "
            "many. Dataset:house.% selects each dataset with such a name: % stands for any text, _ for one "
            "character. {type: Dataset, name: PATTERN, labels: FILTER} selects also by labels."
        ),
        refers_to("Dataset", selects=True),
        msgspec.Meta(extra_json_schema={"type": ["string", "object"]}),
    ]
    target_labels: Annotated[str, describe("Former form of the labels of target, as after -l.")] | None = None
    service_account: Annotated[str, describe(_SERVICE), _ACCOUNT] | None = None
    triggers: Annotated[tuple[TriggerSpec, ...], describe("What causes runs; any number.")]
    tasks: Annotated[tuple[TaskSpec, ...], describe("1 to 8 tasks, done in order.")]
    retry_policy: Annotated[RetryPolicy, describe("Retries of runs that failed for a reason that may pass.")] | None = (
        None
    )
    recent_runs_retention: Annotated[RunsRetention, describe("Which finished runs stay."), OWN] | None = None


class DatasetSchedule(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When a dataset without a Flow is pulled: give either ``cron`` or ``every``."""

    cron: Annotated[str, describe("Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")] | None = None
    every: (
        Annotated[str, describe("An interval. Runs are at its whole multiples since 1970 in UTC."), LENGTH] | None
    ) = None
    time_zone: Annotated[str, describe("Time zone of the cron expression. Default: UTC.")] | None = None

    def check(self) -> None:
        """Raises Invalid unless exactly one valid ``cron`` or ``every`` is given."""
        zone = parse_zone(self.time_zone or UTC)
        if (self.cron is None) == (self.every is None):
            raise Invalid("a schedule has either cron or every", rule="flow-trigger", hint="cron: '30 17 * * 1-5'")
        parse_every(self.every) if self.cron is None and self.every is not None else parse_cron(self.cron or "", zone)


class DerivationPolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Whether and how a derived dataset without a Flow follows its inputs. Default: the settings [flows]."""

    when: Annotated[
        str, describe("Update: the dataset follows its inputs. Manual: it is derived only when it is pulled.")
    ] = "Update"
    cooldown: (
        Annotated[
            str,
            describe("Shortest time between two runs that new data causes. Default: flows.cooldown-seconds."),
            LENGTH,
        ]
        | None
    ) = None
