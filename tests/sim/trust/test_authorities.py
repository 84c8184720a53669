"""Owners rotate, writers are robbed, roots contradict themselves, persons decide: all agree who may write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest

from chain.statements.statement import HEAD
from chain.store.database import open_database
from odfd.store.ledger import retention
from odfd.store.ledger.log import Ledger
from odfd.trust.admission import rules, statement_processor
from odfd.trust.admission.rules import AdmissionOutcome, Admitted, admit_authority
from sim.kernel import hold, share
from sim.trust.promises import Broken
from sim.trust.realm import Peer, Realm

NODES = 3
Make: TypeAlias = Callable[..., Realm]


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[Make]:
    """Realms are of different datasets, so that nodes are the same for all."""
    with ExitStack() as open_ones:
        databases = [
            open_ones.enter_context(closing(open_database(tmp_path / f"{number}.sqlite"))) for number in range(NODES)
        ]
        yield partial(Realm, peers=[Peer(f"n{number}", each, tmp_path) for number, each in enumerate(databases)])


@pytest.mark.slow
@pytest.mark.parametrize("disputed", [False, True])
def test_who_may_write_is_agreed(realm: Make, disputed: bool) -> None:
    hold(share(20, 1 / 10), partial(realm, disputed=disputed))


@pytest.mark.slow
def test_nodes_that_prune_know_what_others_know(realm: Make) -> None:
    hold(share(20, 1 / 10)[:5], partial(realm, disputed=True, pruning=True))


def of_heads_all(_page: Any, row: Any) -> bool:
    return bool(row.type == HEAD)


def forgetful(head: Any, signed: Any, newest: Any, context: Any) -> Admitted | None:
    found = RIGHTS_DOUBTED(head, signed, newest, context)
    old = found is not None and found.outcome in (AdmissionOutcome.OLD_EPOCH, AdmissionOutcome.OLDER)
    return None if old else found


def blind(*given: Any) -> Any:
    verdict, rights = admit_authority(*given)
    return (Admitted(AdmissionOutcome.OLDER) if verdict.outcome is AdmissionOutcome.FORK else verdict), rights


def anybody(_head: Any, signed: Any, _rights: Any) -> Any:
    return min(signed.signers, default=None)


def strict(_head: Any, mistake: Any) -> Admitted:
    return Admitted(AdmissionOutcome.REJECTED, mistake)


RIGHTS_DOUBTED = rules._rights_doubted
DISPUTED = {"disputed": True}
BROKEN: dict[str, tuple[tuple[ModuleType | type, ...], str, Callable[..., Any], dict[str, bool], str]] = {
    "the last word of a signer goes": ((retention._Page,), "_may_go", of_heads_all, {"pruning": True}, "S5"),
    "heads of closed epochs count": ((rules,), "_rights_doubted", forgetful, {}, "W S7"),
    "heads stay when their epoch closes": ((Ledger,), "close_epochs", lambda *_: None, {}, "W S7"),
    "contradictions of a root pass": ((statement_processor,), "admit_authority", blind, DISPUTED, "A"),
    "heads are followed in dispute": ((statement_processor,), "is_disputed", lambda *_: False, DISPUTED, "A"),
    "anybody's signature will do": ((rules, statement_processor), "writer_of", anybody, {}, "W S7"),
    "who knows another form of a version is blamed": ((rules,), "_not_of_my_version", strict, DISPUTED, "J"),
}
"""Where what is changed, of what it is replaced by, the plan in which it is noticed, and the promises that break."""


@pytest.mark.nightly
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(realm: Make, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    places, name, broken, plan, promises = BROKEN[rule]
    for where in places:
        monkeypatch.setattr(where, name, broken)
    with pytest.raises(Broken) as found:
        hold(range(60), partial(realm, **plan))
    assert found.value.promise in promises.split()
