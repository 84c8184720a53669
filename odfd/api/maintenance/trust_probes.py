"""Probes for ``odfctl doctor`` what a node relies on and what others' reliance on it hangs on.

These are the policy in force, the roots whose keys lie on this machine, and witnesses of which none may be missing.
Synchronous; the cost is one look at each dataset of this node's own that is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from chain.ids import DatasetId, KeyDid
from odfd.control import wire
from odfd.datasets.visibility import Visibility
from odfd.state.directory import StateDirectory
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.keys.keystore import KeyStore
from odfd.trust.ledger.authorities import Authorities
from odfd.trust.policy.policy import SANDBOXES, Policy

SHOWN: Final = 3
"""Of several datasets."""


class TrustProbes:
    """``profile`` names the one of the settings; ``visibility`` says which datasets others may see."""

    def __init__(
        self, home: StateDirectory, evaluator: TrustEvaluator, visibility: Visibility, profile: Callable[[], str]
    ) -> None:
        self._home = home
        self._evaluator = evaluator
        self._visibility = visibility
        self._profile = profile

    def all(self) -> Mapping[str, Callable[[], wire.Probe]]:
        """By name, in the order in which they are shown."""
        return {"policy": self._policy, "roots": self._roots, "witnesses": self._witnesses}

    def _policy(self) -> wire.Probe:
        message = policy_text(self._profile(), self._evaluator.policy)
        return wire.Probe(name="policy", result="ok", message=message)

    def _roots(self) -> wire.Probe:
        """Whose theft gives datasets away for good."""
        own = list(self._published())
        online = [name for dataset, name in own if self._is_online(dataset)]
        if not online:
            told = "no published dataset of this node's own has its root's key here"
            return wire.Probe(name="roots", result="ok", message=told)
        return wire.Probe(
            name="roots",
            result="warning",
            message=f"root keys of published datasets lie on this machine: {_few(online)}",
            hint=f"odfctl trust authority rotate {online[0]} --offline-key FILE moves it into FILE, to be put away",
        )

    def _is_online(self, dataset: DatasetId) -> bool:
        with self._home.database.read() as connection:
            rights = Authorities(connection).rights(dataset)
        return is_root_here(self._home.keys, rights.roots, rights.threshold, dataset)

    def _witnesses(self) -> wire.Probe:
        """Readers' policies are not known here: what this node, and its network, ask for stands for them."""
        asked = self._evaluator.policy.witnesses_asked
        if not asked:
            return wire.Probe(name="witnesses", result="ok", message="none are asked for by the policy in force")
        spare = {name: self._spare(dataset) for dataset, name in self._published()}
        short = [f"{name}: {why}" for name, left in spare.items() if (why := spare_text(asked, left))]
        if short:
            hint = "list more groups in [policy.witness], or ask more to cosign: docs/witnesses.md"
            return wire.Probe(name="witnesses", result="warning", message=_few(short), hint=hint)
        return wire.Probe(name="witnesses", result="ok", message="one less would stop no reader of what is published")

    def _spare(self, dataset: DatasetId) -> int | None:
        return self._evaluator.witnesses_to_spare(self._evaluator.known(dataset))

    def _published(self) -> Iterator[tuple[DatasetId, str]]:
        with self._home.catalog() as catalog:
            names = {entry.id: entry.name for entry in catalog.entries()}
        own = [dataset for dataset in names if self._home.keys.has_dataset_key(dataset)]
        for dataset in self._visibility.public_of(own):
            yield dataset, names[dataset]


def policy_text(profile: str, policy: Policy) -> str:
    """What is relied on and what is given, in one line."""
    told = f"{profile}: uses what meets {policy.use}, passes on what meets {policy.serve}"
    if policy.min_sandbox == SANDBOXES[0]:
        return told
    return f"{told}; counts verdicts of others from the sandbox {policy.min_sandbox} on"


def is_root_here(keys: KeyStore, roots: AbstractSet[KeyDid], threshold: int, dataset: DatasetId) -> bool:
    """Whether whoever reads this machine's keys may say who writes a dataset."""
    return sum(key.did in roots for key in keys.held(dataset)) >= threshold


def spare_text(asked: int, spare: int | None) -> str:
    """What an owner is told of witnesses; nothing where more than enough cosign."""
    if spare is None or spare > 0:
        return ""
    if spare < 0:
        return f"{asked + spare} of the {asked} witness groups asked for cosign it: readers stop"
    return f"one witness group less would stop readers: {asked} are asked for, and {asked} cosign it"


def _few(found: Sequence[str]) -> str:
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more
