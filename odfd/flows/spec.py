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
    """Runs at times: either ``cron`` or ``every`` is given."""

    cron: Annotated[str, described("Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")] | None = None
    every: Annotated[str, described("An interval; runs are at its multiples since 1970 in UTC."), LENGTH] | None = None


class OnDataset(msgspec.Struct, frozen=True, kw_only=True, tag="Dataset"):
    """Runs when a dataset has new data."""

    dataset: Annotated[str, described("Its name, Dataset:NAME, did:odf:…, or the id of its resource."), _DATASET]


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

    type: Annotated[EventType, Scalar("int32"), described("The target has other blocks than before.")]


class OnEvent(msgspec.Struct, frozen=True, kw_only=True, tag="Event"):
    """Runs when something happens to the target, save what a run of this flow did to it."""

    events: Annotated[EventFilter, described("Which events.")]
    cooldown: Annotated[str, described("As that of the flowPolicy, which is left out then."), LENGTH] | None = None


class OnSource(msgspec.Struct, frozen=True, kw_only=True, tag="Source", rename="camel"):
    """Runs when records were pushed to the endpoint of a Source."""

    source: Annotated[str, described("Source:NAME, or its name or id."), refers_to("Source")]
    min_records_to_await: Annotated[U64, described("Records that it waits for; 1 if nothing is said.")] | None = None
    max_await_interval: (
        Annotated[str, described("How long at the most, from the oldest of them; 1h."), LENGTH] | None
    ) = None


class IngestTask(msgspec.Struct, frozen=True, kw_only=True, tag="Ingest", rename="camel"):
    """Pulls the dataset."""

    source: (
        Annotated[str, described("The Source to take from; the source in the dataset's metadata."), refers_to("Source")]
        | None
    ) = None
    fetch_uncacheable: Annotated[
        bool, described("Fetch also from a web source that cannot tell whether it changed.")
    ] = False


class ExtensionTask(
    msgspec.Struct, frozen=True, kw_only=True, tag="Ext", rename={"extension": "$schema", "level": "level", "to": "to"}
):
    """A task that RFC-018 does not have."""

    extension: Annotated[str, described("Verify: checks the dataset. Push: gives it to a repository.")]
    level: (
        Annotated[
            VerifyLevel,
            Scalar("int32"),
            described(
                "Of Verify. chain: the blocks; data: also the data; reproduced: also every transform, by repeating "
                "it; data."
            ),
        ]
        | None
    ) = None
    to: Annotated[str, described("Of Push: Repository:NAME, or its name or id."), refers_to("Repository")] | None = None


class CompactionParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How large slices become."""

    max_slice_size: Annotated[str, described("Like 100MiB; 300MB if nothing is said.")] | None = None
    max_slice_records: Annotated[U64, described("10000 if nothing is said.")] | None = None


class CompactionTask(msgspec.Struct, frozen=True, kw_only=True, tag="Compaction"):
    """Merges slices of the dataset, which this node has to publish."""

    params: Annotated[CompactionParams, described("How large slices become.")] | None = None


class GarbageCollectionTask(msgspec.Struct, frozen=True, kw_only=True, tag="GarbageCollection"):
    """Frees what no dataset of the node needs any more."""


class WebhookCallTask(msgspec.Struct, frozen=True, kw_only=True, tag="WebhookCall"):
    """Calls a WebhookTarget, signed as its other calls are; what it does not answer is tried again as runs are."""

    target: Annotated[str, described("WebhookTarget:NAME, or its name or id."), refers_to("WebhookTarget")]
    payload: (
        Annotated[
            str, described("What is sent: ${{ trigger.event }}, ${{ trigger.time }} and text around; the event alone.")
        ]
        | None
    ) = None


TaskSpec: TypeAlias = IngestTask | CompactionTask | GarbageCollectionTask | WebhookCallTask | ExtensionTask


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Retries of a run that failed for a temporary reason."""

    max_attempts: Annotated[U32, described("1 to 100; 3 if nothing is said.")] | None = None
    min_delay: Annotated[str, described("The first pause; 10s."), LENGTH] | None = None
    max_delay: Annotated[str, described("The longest pause; 1h."), LENGTH] | None = None


class FlowPolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the runs of a flow behave."""

    suspend: Annotated[bool, described("The flow rests.")] = False
    time_zone: Annotated[str, described("Of the cron expression; UTC.")] | None = None
    catch_up: Annotated[str, described("Of times that passed: one (the latest), all, or none.")] | None = None
    catch_up_window: Annotated[str, described("How old a time may be that is caught up; 1d."), LENGTH] | None = None
    cooldown: Annotated[str, described("Between two runs that new data causes; 1min."), LENGTH] | None = None
    retry: RetryPolicy | None = None


class FlowSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tasks for a dataset, and when they are done."""

    target: Annotated[
        str,
        described(
            "Dataset:NAME, NAME, did:odf:… or the id of its resource: what the tasks are about. Dataset:house.% is "
            "for each dataset of such a name: % stands for any text, _ for one character."
        ),
        refers_to("Dataset", selects=True),
    ]
    target_labels: (
        Annotated[str, described("Of a target with %: those with such labels alone, like env=prod,!old.")] | None
    ) = None
    triggers: Annotated[
        tuple[OnSchedule | OnDataset | OnSource | OnEvent, ...],
        described("One schedule and one event at most, and any number of datasets and Sources."),
    ]
    tasks: (
        Annotated[
            tuple[TaskSpec, ...],
            described("Up to 8, in order, until one does not end well; nothing: a pull of the target."),
        ]
        | None
    ) = None


class DatasetSchedule(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When a dataset without a Flow is pulled: either ``cron`` or ``every`` is given."""

    cron: Annotated[str, described("Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")] | None = None
    every: Annotated[str, described("An interval; runs are at its multiples since 1970 in UTC."), LENGTH] | None = None
    time_zone: Annotated[str, described("Of the cron expression; UTC.")] | None = None

    def check(self) -> None:
        """Raises Invalid unless exactly one valid ``cron`` or ``every`` is given."""
        zone = parse_zone(self.time_zone or UTC)
        if (self.cron is None) == (self.every is None):
            raise Invalid("a schedule has either cron or every", rule="flow-trigger", hint="cron: '30 17 * * 1-5'")
        parse_every(self.every) if self.cron is None and self.every is not None else parse_cron(self.cron or "", zone)


class DerivationPolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Whether and how a derived dataset without a Flow follows its inputs; else the settings say it ([flows])."""

    when: Annotated[str, described("Update: it follows its inputs; Manual: it is derived when it is pulled.")] = (
        "Update"
    )
    cooldown: (
        Annotated[str, described("Between two runs that new data causes; flows.cooldown-seconds."), LENGTH] | None
    ) = None
