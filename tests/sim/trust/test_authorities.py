"""Owners rotate, writers are robbed, roots contradict themselves, persons decide: who may write is agreed all the same.

``ODFD_SIM_SEEDS`` sets how many realms are run, ``ODFD_SIM_SEED`` runs one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from chain.statements.statement import HEAD
from chain.store.database import open_database
from odfd.store.ledger import retention
from odfd.store.ledger.log import Ledger
from odfd.trust.admission import rules, statement_processor
from odfd.trust.admission.rules import AdmissionOutcome, Admitted

SEEDS = int(os.environ.get("ODFD_SIM_SEEDS", "200")) // 10
ONE = os.environ.get("ODFD_SIM_SEED")
NODES = 3


@pytest.fixture
def realm(trustnet: Any, tmp_path: Path) -> Iterator[Any]:
    """Runs one seed; realms are of different datasets, so that nodes are the same for all."""
    module = importlib.import_module(f"{trustnet.__name__}.realm")
    with ExitStack() as open_ones:
        databases = [
            open_ones.enter_context(closing(open_database(tmp_path / f"{number}.sqlite"))) for number in range(NODES)
        ]
        peers = [module.Peer(f"n{number}", each, tmp_path) for number, each in enumerate(databases)]
        yield lambda seed, **plan: module.Realm(seed, peers, **plan).run()


def seeds() -> range:
    return range(int(ONE), int(ONE) + 1) if ONE else range(SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("disputed", [False, True])
def test_who_may_write_is_agreed(realm: Any, disputed: bool) -> None:
    for seed in seeds():
        realm(seed, disputed=disputed)


@pytest.mark.slow
def test_nodes_that_prune_know_what_others_know(realm: Any) -> None:
    for seed in seeds()[:5]:
        realm(seed, disputed=True, pruning=True)


@pytest.mark.slow
def test_losing_the_last_word_of_a_signer_is_noticed(trustnet: Any, realm: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(retention._Page, "_may_go", lambda _page, row: row.type == HEAD)
    assert noticed(trustnet, realm, 7000, pruning=True) == "S5"


def noticed(trustnet: Any, realm: Any, first: int, **plan: Any) -> str:
    """The promise broken by the first realm that notices; empty when none does."""
    for seed in range(first, first + 25):
        try:
            realm(seed, **plan)
        except trustnet.promises.Broken as broken:
            return str(broken.promise)
    return ""


@pytest.mark.slow
def test_heads_of_closed_epochs_that_count_are_noticed(trustnet: Any, realm: Any, monkeypatch: Any) -> None:
    honest = rules._rights_doubted

    def forgetful(head: Any, signed: Any, newest: Any, context: Any) -> Admitted | None:
        found = honest(head, signed, newest, context)
        return (
            None
            if found is not None and found.outcome in (AdmissionOutcome.OLD_EPOCH, AdmissionOutcome.OLDER)
            else found
        )

    monkeypatch.setattr(rules, "_rights_doubted", forgetful)
    assert noticed(trustnet, realm, 1000) in ("W", "S7")


@pytest.mark.slow
def test_heads_that_stay_when_their_epoch_closes_are_noticed(trustnet: Any, realm: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(Ledger, "close_epochs", lambda *_: None)
    assert noticed(trustnet, realm, 2000) in ("W", "S7")


@pytest.mark.slow
def test_contradictions_of_a_root_let_pass_are_noticed(trustnet: Any, realm: Any, monkeypatch: Any) -> None:
    honest = statement_processor.admit_authority

    def blind(*given: Any) -> Any:
        verdict, rights = honest(*given)
        return (Admitted(AdmissionOutcome.OLDER) if verdict.outcome is AdmissionOutcome.FORK else verdict), rights

    monkeypatch.setattr(statement_processor, "admit_authority", blind)
    assert noticed(trustnet, realm, 3000, disputed=True) == "A"


@pytest.mark.slow
def test_heads_followed_in_dispute_are_noticed(trustnet: Any, realm: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(statement_processor, "is_disputed", lambda *_: False)
    assert noticed(trustnet, realm, 4000, disputed=True) == "A"


@pytest.mark.slow
def test_writers_of_no_version_are_noticed(trustnet: Any, realm: Any, monkeypatch: Any) -> None:
    """Anybody's signature will do."""
    monkeypatch.setattr(rules, "writer_of", lambda _head, signed, _rights: min(signed.signers, default=None))
    monkeypatch.setattr(
        statement_processor, "writer_of", lambda _head, signed, _rights: min(signed.signers, default=None)
    )
    assert noticed(trustnet, realm, 5000) in ("W", "S7")


@pytest.mark.slow
def test_blaming_who_knows_another_form_of_a_version_is_noticed(trustnet: Any, realm: Any, monkeypatch: Any) -> None:
    strict = lambda _head, mistake: Admitted(AdmissionOutcome.REJECTED, mistake)  # noqa: E731
    monkeypatch.setattr(rules, "_not_of_my_version", strict)
    assert noticed(trustnet, realm, 6000, disputed=True) == "J"
