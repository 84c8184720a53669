"""``secret``: shows the key that values of SecretSets are sealed to."""

from __future__ import annotations

import argparse

from chain.wording import plural
from odfd.cli.command import Commands
from odfd.cli.session import Session
from odfd.control import wire

commands = Commands()
secret = commands.group("secret", help="the key of secrets", example="rotate")


@secret.add("rotate", help="seal all values to a new key, and destroy the one before")
def _rotate(session: Session, _: argparse.Namespace) -> None:
    done = session.client.post("/secrets/rotation", wire.SecretRotation)
    session.answer(done, lambda row: f"{plural(row.values, 'value')} sealed to a new key")
    session.remark("keys/secrets.jwks is another now: back it up. Backups of before need the key of then")
