"""Probes trust and time for ``odfctl doctor``: the policy, root keys, witnesses, engine pins, the clock, wrong times.

The probes check the policy in force, root keys that lie on this machine, required witnesses, and datasets whose times
come from a wrong clock. Synchronous; each of the node's own datasets costs a read of one or two blocks, and a binary
search over its blocks if its times are ahead.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from chain import instant
from chain.errors import Fault
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.events import AddData, ExecuteTransform
from chain.state import ChainState, load_state
from chain.store.base import ChainReader
from engines.spark.analysis.source_declarations import AHEAD, read_source
from odfd.control import wire
from odfd.datasets.commit import TOLERANCE, check_jump
from odfd.datasets.engine_pins import ENGINE_CHANGED, way
from odfd.datasets.previews import way_to_data
from odfd.policy.policy import SANDBOXES, Policy
from odfd.services.views.cache import BLOCKED
from odfd.store.directory import StateDirectory
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.authorities import Authorities
from odfd.store.visibility import Visibility
from odfd.trust.judgement.trust_evaluator import TrustEvaluator

SHOWN: Final = 3
"""Most datasets that a probe names."""


class TrustProbes:
    """Probes the policy, root keys and witnesses.

    ``profile`` returns its name in the settings; ``visibility`` decides which datasets others may see.
    """

    def __init__(
        self, home: StateDirectory, evaluator: TrustEvaluator, visibility: Visibility, profile: Callable[[], str]
    ) -> None:
        self._home = home
        self._evaluator = evaluator
        self._visibility = visibility
        self._profile = profile

    def all(self) -> Mapping[str, Callable[[], wire.Probe]]:
        """Returns the probes by name, in the order in which they are shown."""
        return {"policy": self._policy, "roots": self._roots, "witnesses": self._witnesses}

    def _policy(self) -> wire.Probe:
        message = policy_text(self._profile(), self._evaluator.policy)
        return wire.Probe(name="policy", result="ok", message=message)

    def _roots(self) -> wire.Probe:
        """Warns of root keys on this machine, whose theft would give datasets away for good."""
        own = list(self._list_published())
        online = [name for dataset, name in own if self._is_online(dataset)]
        if not online:
            text = "no published dataset of this node's own has its dataset key here"
            return wire.Probe(name="roots", result="ok", message=text)
        return wire.Probe(
            name="roots",
            result="warning",
            message=f"root keys of published datasets are on this machine: {_few(online)}",
            hint=f"odfctl trust authority rotate {online[0]} --offline-key FILE moves it into FILE, to be put away",
        )

    def _is_online(self, dataset: DatasetId) -> bool:
        with self._home.database.read() as connection:
            rights = Authorities(connection).rights(dataset)
        return is_root_here(self._home.keys, rights.roots, rights.threshold, dataset)

    def _witnesses(self) -> wire.Probe:
        """Warns of published datasets that cannot spare a witness.

        Readers' policies are not known here, so the number that this node's policy asks for stands for them.
        """
        asked = self._evaluator.policy.witnesses_asked
        if not asked:
            return wire.Probe(name="witnesses", result="ok", message="none are asked for by the policy in force")
        spare = {name: self._spare(dataset) for dataset, name in self._list_published()}
        short = [f"{name}: {why}" for name, left in spare.items() if (why := spare_text(asked, left))]
        if short:
            hint = "list more groups in [policy.witness], or ask more to cosign: odfctl docs witnesses"
            return wire.Probe(name="witnesses", result="warning", message=_few(short), hint=hint)
        return wire.Probe(name="witnesses", result="ok", message="one less would stop no reader of what is published")

    def _spare(self, dataset: DatasetId) -> int | None:
        return self._evaluator.witnesses_to_spare(self._evaluator.known(dataset))

    def _list_published(self) -> Iterator[tuple[DatasetId, str]]:
        names = {entry.id: entry.name for entry in self._home.entries()}
        own = [dataset for dataset in names if self._home.keys.has_dataset_key(dataset)]
        for dataset in self._visibility.public_of(own):
            yield dataset, names[dataset]


def policy_text(profile: str, policy: Policy) -> str:
    """Describes in one line what the policy requires for use and for serving."""
    text = f"{profile}: uses what meets {policy.use}, passes on what meets {policy.serve}"
    if policy.min_sandbox == SANDBOXES[0]:
        return text
    return f"{text}; counts verdicts of others from the sandbox {policy.min_sandbox} on"


def is_root_here(keys: KeyStore, roots: AbstractSet[KeyDid], threshold: int, dataset: DatasetId) -> bool:
    """Whether the keys on this machine suffice to change who may write a dataset."""
    return sum(key.did in roots for key in keys.keys_for(dataset)) >= threshold


def spare_text(asked: int, spare: int | None) -> str:
    """Describes missing or spare witnesses to an owner; empty where more than enough cosign."""
    if spare is None or spare > 0:
        return ""
    if spare < 0:
        return f"{asked + spare} of the {asked} witness groups asked for cosign it: readers stop"
    return f"one witness group less would stop readers: {asked} are asked for, and {asked} cosign it"


def _few(found: Sequence[str]) -> str:
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more


def pins_probe(views: Callable[[], Sequence[wire.DatasetView]]) -> wire.Probe:
    """Tells of own datasets whose engine was replaced, as by an upgrade; nothing is appended to them."""
    blocked = [view.name for view in views() if BLOCKED in view.conditions]
    if not blocked:
        text = "no dataset of this node's own pins another engine"
        return wire.Probe(name="engine pins", result="ok", message=text)
    text = "the engine here is not the one that they pin, so nothing is appended"
    message = f"{text} (rule {ENGINE_CHANGED}): {_few(blocked)}"
    return wire.Probe(name="engine pins", result="failed", message=message, hint=way(blocked[0]))


_DATA: Final = ("AddData", "ExecuteTransform")


class ClockProbe:
    """Probes the clock, and the times in this node's own datasets.

    ``ahead`` tells by how much the clock was set ahead since the node began, as ``JumpWatch`` does.
    """

    def __init__(
        self, home: StateDirectory, now: Callable[[], Instant], ahead: Callable[[Instant | None], int]
    ) -> None:
        self._home = home
        self._now = now
        self._ahead = ahead

    def __call__(self) -> wire.Probe:
        now = self._now()
        try:
            check_jump(self._ahead(None), now)
        except Fault as fault:
            return wire.Probe(name="clock", result="failed", message=fault.message, hint=fault.hint)
        limit = Instant(now + TOLERANCE)
        marked = [found for found in (self._find_marked(each, limit) for each in self._own()) if found is not None]
        if not marked:
            return wire.Probe(name="clock", result="ok", message="no block and no watermark of ours is ahead of it")
        more = f"; and {len(marked) - SHOWN} more" if len(marked) > SHOWN else ""
        name, _, keep, refill = marked[0]
        return wire.Probe(
            name="clock",
            result="failed",
            message="; ".join(said for _, said, *_ in marked[:SHOWN]) + more,
            hint=_way_out(name, keep, refill),
        )

    def _own(self) -> list[DatasetId]:
        return [dataset for dataset in self._home.chains.datasets() if self._home.keys.has_dataset_key(dataset)]

    def _find_marked(self, dataset: DatasetId, limit: Instant) -> tuple[str, str, int, str] | None:
        """Returns how a dataset's times are ahead of the clock, or ``None``.

        The result is its name, what is wrong, the last good block (-1 for none), and the command that brings rows
        again.
        """
        chain = self._home.chains.chain(dataset)
        if not _may_be_ahead(chain, limit):
            return None
        state = load_state(chain)
        if state.system_time is None or state.kind is None:
            return None
        name = self._home.name_of(dataset)
        refill = way_to_data(name, state, own=True)
        if state.system_time > limit:
            first = bisect.bisect_right(range(state.size), limit, key=lambda number: chain.block_at(number).system_time)
            time = instant.render(chain.block_at(first).system_time)
            return name, f"{name}: blocks from #{first} on are of {time} and later", first - 1, refill
        if state.watermark is not None and state.watermark > limit and not _is_meant(state):
            first = _first_marked(chain, state.size, limit)
            mark = instant.render(state.watermark)
            return (
                name,
                f"{name}: since block #{first} its watermark is {mark}, and all rows are late",
                first - 1,
                refill,
            )
        return None


def _way_out(name: str, keep: int, refill: str) -> str:
    """Returns the commands that give up blocks after ``keep``; ``refill`` is the one that brings their rows again."""
    give_up, after = f"odfctl reset {name} '#{keep}'", "mirrors follow the epoch as their policy says"
    if keep < 0:
        give_up, after = f"odfctl delete dataset {name}", "it has another id then: inform the nodes that follow it"
    file = f"{name}.yaml"
    return (
        f"if the clock is right: odfctl get dataset {name} -o manifest > {file}; {give_up}; odfctl apply -f {file}; "
        f"{refill}; {after}"
    )


def _may_be_ahead(chain: ChainReader, limit: Instant) -> bool:
    """Whether the newest block or its watermark may be later than ``limit``; most chains need no further reading."""
    head = chain.head()
    if head is None:
        return False
    last = chain.block_at(head.size - 1)
    if last.system_time > limit:
        return True
    data = last if isinstance(last.event, AddData | ExecuteTransform) else chain.last_of(_DATA)
    said = data.event.new_watermark if data is not None and isinstance(data.event, AddData | ExecuteTransform) else None
    return data is not None and (said is None or said > limit)


def _is_meant(state: ChainState) -> bool:
    """Whether a source declares that its event times are ahead of the clock; a derived dataset has no source."""
    sources = [state.polling_source, *state.active_push_sources.values()]
    return any(source is not None and read_source(source.preprocess)[1].ahead != AHEAD for source in sources)


def _first_marked(chain: ChainReader, size: int, limit: Instant) -> int:
    """Returns the first block with a watermark later than ``limit``, by binary search: watermarks never go back."""

    def mark(number: int) -> Instant:
        block = chain.last_of(_DATA, number + 1)
        event = block.event if block is not None else None
        said = event.new_watermark if isinstance(event, AddData | ExecuteTransform) else None
        return Instant(-(1 << 80)) if said is None else said

    return bisect.bisect_right(range(size), limit, key=mark)
