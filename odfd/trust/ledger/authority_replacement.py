"""Replaces a version of an authority by another statement of the same version, with everything that depends on it."""

from __future__ import annotations

import sqlite3

from chain.statements.envelope import Signed
from chain.statements.statement import Authority
from odfd.trust.ledger.authorities import Authorities
from odfd.trust.ledger.log import Ledger


def hold_instead(connection: sqlite3.Connection, said: Authority, signed: Signed) -> None:
    """Hold another statement of a version that is held; heads that rest on the one given up go with it."""
    authorities, ledger = Authorities(connection), Ledger(connection)
    authorities.replace(said, signed)
    ledger.drop_heads_under(said.dataset, said.version)
    ledger.close_epochs(authorities.rights(said.dataset))
