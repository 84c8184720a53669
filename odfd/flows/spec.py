"""Declares the manifest of a Flow, a part of the Flow of RFC-018. Values: ``odfd.flows.manifest`` judges them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.model.wire import U32, U64, Scalar
from odfd.flows.schedule import UTC, parse_cron, parse_every, parse_zone
from odfd.resources.manifest import described
from odfd.resources.references import refers_to

_DATASET: Final = refers_to("Dataset")
LENGTH: Final = msgspec.Meta(extra_json_schema={"format": "duration, such as 90s, 10min, 1h or 1d"})


class OnSchedule(msgspec.Struct, frozen=True, kw_only=True, tag="Schedule"):
    """Runs at times: give either ``cron`` or ``every``."""

    cron: Annotated[str, described("Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")] | None = None
    every: (
        Annotated[str, described("An interval. Runs are at its whole multiples since 1970 in UTC."), LENGTH] | None
    ) = None


class OnDataset(msgspec.Struct, frozen=True, kw_only=True, tag="Dataset"):
    """Runs when a dataset has new data."""

    dataset: Annotated[
        str, described("The dataset: its name, Dataset:NAME, did:odf:… or the id of its resource."), _DATASET
    ]


class EventType(Enum):
    """An event that may happen to a target."""

    UPDATED = "dataset.ref.updated"


class VerifyLevel(Enum):
    """How much of a dataset is checked."""

    CHAIN = "chain"
    DATA = "data"
    REPRODUCED = "reproduced"


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects events."""

    type: Annotated[EventType, Scalar("int32"), described("The target's blocks have changed.")]


class OnEvent(msgspec.Struct, frozen=True, kw_only=True, tag="Event"):
    """Runs when something happens to the target, unless a run of this flow did it."""

    events: Annotated[EventFilter, described("The events that trigger a run.")]
    cooldown: (
        Annotated[str, described("Like cooldown of the flowPolicy, which must then be left out."), LENGTH] | None
    ) = None


class OnSource(msgspec.Struct, frozen=True, kw_only=True, tag="Source", rename="camel"):
    """Runs when records were pushed to the endpoint of a Source."""

    source: Annotated[str, described("The Source, as Source:NAME, or by its name or id."), refers_to("Source")]
    min_records_to_await: Annotated[U64, described("Number of records that trigger a run. Default: 1.")] | None = None
    max_await_interval: (
        Annotated[str, described("Longest wait for that number, since the oldest record. Default: 1h."), LENGTH] | None
    ) = None


class IngestTask(msgspec.Struct, frozen=True, kw_only=True, tag="Ingest", rename="camel"):
    """Pulls the dataset."""

    source: (
        Annotated[
            str,
            described("The Source to pull from. Default: the source in the dataset's metadata."),
            refers_to("Source"),
        ]
        | None
    ) = None
    fetch_uncacheable: Annotated[
        bool, described("Whether to fetch also from a web source that cannot tell whether it has changed.")
    ] = False


class ExtensionTask(
    msgspec.Struct, frozen=True, kw_only=True, tag="Ext", rename={"extension": "$schema", "level": "level", "to": "to"}
):
    """A task that RFC-018 does not have."""

    extension: Annotated[str, described("Verify: verifies the dataset. Push: pushes it to a repository.")]
    level: (
        Annotated[
            VerifyLevel,
            Scalar("int32"),
            described(
                "For Verify. chain: blocks; data (default): also data; reproduced: also every transform, "
                "by running it again."
            ),
        ]
        | None
    ) = None
    to: (
        Annotated[
            str,
            described("For Push: the repository, as Repository:NAME, or by its name or id."),
            refers_to("Repository"),
        ]
        | None
    ) = None


class CompactionParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sizes of the merged slices."""

    max_slice_size: Annotated[str, described("Largest size, such as 100MiB. Default: 300MB.")] | None = None
    max_slice_records: Annotated[U64, described("Most records of a slice. Default: 10000.")] | None = None


class CompactionTask(msgspec.Struct, frozen=True, kw_only=True, tag="Compaction"):
    """Merges slices of the dataset, which must be one of this node's own."""

    params: Annotated[CompactionParams, described("Sizes of the merged slices.")] | None = None


class GarbageCollectionTask(msgspec.Struct, frozen=True, kw_only=True, tag="GarbageCollection"):
    """Deletes objects that no dataset of the node needs any more."""


class WebhookCallTask(msgspec.Struct, frozen=True, kw_only=True, tag="WebhookCall"):
    """Calls a WebhookTarget, with a signature. A call without a good answer fails the run, which is retried."""

    target: Annotated[
        str, described("The target, as WebhookTarget:NAME, or by its name or id."), refers_to("WebhookTarget")
    ]
    payload: (
        Annotated[
            str, described("The body: text with ${{ trigger.event }} and ${{ trigger.time }}. Default: the event.")
        ]
        | None
    ) = None


TaskSpec: TypeAlias = IngestTask | CompactionTask | GarbageCollectionTask | WebhookCallTask | ExtensionTask


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Retries of a run that failed for a temporary reason."""

    max_attempts: Annotated[U32, described("1 to 100. Default: 3.")] | None = None
    min_delay: Annotated[str, described("The first pause. Default: 10s."), LENGTH] | None = None
    max_delay: Annotated[str, described("The longest pause. Default: 1h."), LENGTH] | None = None


class FlowPolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the runs of a flow behave."""

    suspend: Annotated[bool, described("Whether the flow is paused.")] = False
    time_zone: Annotated[str, described("Time zone of the cron expression. Default: UTC.")] | None = None
    catch_up: Annotated[str, described("Which missed times are caught up: one (the latest), all, or none.")] | None = (
        None
    )
    catch_up_window: (
        Annotated[str, described("How long ago a missed time may be to be caught up. Default: 1d."), LENGTH] | None
    ) = None
    cooldown: (
        Annotated[str, described("Shortest time between two runs that new data causes. Default: 1min."), LENGTH] | None
    ) = None
    retry: RetryPolicy | None = None


class FlowSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tasks for a dataset, and what triggers them."""

    target: Annotated[
        str,
        described(
            "The dataset of the tasks: Dataset:NAME, NAME, did:odf:… or the id of its resource. "
            "Dataset:house.% selects each dataset with such a name: % stands for any text, _ for one "
            "character."
        ),
        refers_to("Dataset", selects=True),
    ]
    target_labels: (
        Annotated[
            str, described("For a target with %: selects only datasets with these labels, such as env=prod,!old.")
        ]
        | None
    ) = None
    triggers: Annotated[
        tuple[OnSchedule | OnDataset | OnSource | OnEvent, ...],
        described("At most one schedule and one event; any number of datasets and Sources."),
    ]
    tasks: (
        Annotated[
            tuple[TaskSpec, ...],
            described("Up to 8 tasks, run in order until one fails. Default: a pull of the target."),
        ]
        | None
    ) = None


class DatasetSchedule(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When a dataset without a Flow is pulled: give either ``cron`` or ``every``."""

    cron: Annotated[str, described("Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")] | None = None
    every: (
        Annotated[str, described("An interval. Runs are at its whole multiples since 1970 in UTC."), LENGTH] | None
    ) = None
    time_zone: Annotated[str, described("Time zone of the cron expression. Default: UTC.")] | None = None

    def check(self) -> None:
        """Raises Invalid unless exactly one valid ``cron`` or ``every`` is given."""
        zone = parse_zone(self.time_zone or UTC)
        if (self.cron is None) == (self.every is None):
            raise Invalid("a schedule has either cron or every", rule="flow-trigger", hint="cron: '30 17 * * 1-5'")
        parse_every(self.every) if self.cron is None and self.every is not None else parse_cron(self.cron or "", zone)


class DerivationPolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Whether and how a derived dataset without a Flow follows its inputs. Default: the settings [flows]."""

    when: Annotated[
        str, described("Update: the dataset follows its inputs. Manual: it is derived only when it is pulled.")
    ] = "Update"
    cooldown: (
        Annotated[
            str,
            described("Shortest time between two runs that new data causes. Default: flows.cooldown-seconds."),
            LENGTH,
        ]
        | None
    ) = None
