"""Signs and gossips the card of this node according to the settings, and withdraws it when they no longer ask for one.

Works while its ``loop`` runs; poked when the settings change. Spec: docs/spec/trust.md#node-cards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chain import instant
from chain.errors import Fault
from chain.statements import envelope, statement
from chain.statements.node_card import NodeCard, NodeClaims
from config.model import Settings
from odfd.control.assembly import Context
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.services.publishing.card_drafts import next_node_card
from odfd.store.directory import StateDirectory
from odfd.store.ledger.cards import NodeCards

LONGEST_SECONDS: Final = 3600.0
"""Seconds between two looks at the clock, since the pauses of a sleeping machine do not count its sleep."""


class NodeCardPublisher:
    """Signs this node's own card."""

    def __init__(
        self,
        home: StateDirectory,
        settings: Callable[[], Settings],
        announce: Callable[[bytes], None],
        context: Context,
    ) -> None:
        """``announce`` is called, from a worker thread, with the envelope of each card."""
        self._home, self._settings, self._announce = home, settings, announce
        self._clock, self._events, self._logger = context.clock, context.events, context.logger
        self.loop = ReconcileLoop(self._round)
        self.current: NodeCard | None = None
        """The card that was signed last; may be a withdrawal."""

    def _round(self) -> float:
        try:
            again, signed = self._settle()
        except Fault as fault:
            self._logger.error("the node's card is not signed", fault=str(fault), rule=fault.rule, hint=fault.hint)
            return LONGEST_SECONDS
        if signed is not None:
            name = "taken back" if signed.claims is None else f"called {signed.claims.name}"
            self._events.emit("node-card.signed", signed.node.short, name)
        return UNTIL_POKED if again is None else min(again, LONGEST_SECONDS)

    def _settle(self) -> tuple[float | None, NodeCard | None]:
        """Signs the card that is due. Returns the seconds until the next, and the signed card."""
        key, now, claims = self._home.keys.node_key(), self._clock.now(), self._claims()
        with self._home.database.read() as connection:
            is_damaged = NodeCards(connection).is_damaged(key.did)
            self.current = None if is_damaged else NodeCards(connection).of(key.did)
        due = next_node_card(self.current, claims, key.did, now)
        if due.card is not None:
            payload = statement.encode(due.card)
            statement.decode_any(payload)
            signed = envelope.unseal(envelope.seal(payload, key), NodeCard.MAX_ENVELOPE)
            with self._home.database.write() as connection:
                NodeCards(connection).keep(due.card, signed, "signed", "", now)
            self.current = due.card
            self._announce(signed.envelope)
        return None if due.again is None else max(0.0, (due.again - now) / instant.SECOND), due.card

    def _claims(self) -> NodeClaims | None:
        """Returns the content of the card by the settings; ``None``: no card. Raises Invalid."""
        settings = self._settings()
        if not settings.p2p.card or not settings.node.name:
            return None
        node = settings.node
        claims = NodeClaims(name=node.name, contact=node.contact, about=node.about)
        claims.check()
        return claims
