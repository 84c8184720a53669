"""Who attacks whom in a siege, and what all attacks have in common."""

from __future__ import annotations

import msgspec

OPENED = "doors that opened"
"""What a stranger may not have was given to one: counted, and never to be."""
TOLD = "secrets told"
"""An answer contained a path of the node: likewise."""


class Plan(msgspec.Struct, frozen=True):
    """Of one process of attackers."""

    address: str
    network: str
    dataset: str
    targets: tuple[str, ...]
    site: str
    """``HOST:PORT`` of one of them, and the name of ``dataset`` there."""
    name: str
    api: str
    """``HOST:PORT`` at which the same node takes calls of webhooks."""
    token: str
    """Of an invitation of the first target, in hex: it has been redeemed by as many nodes as it is for."""
    secrets: tuple[str, ...]
    """Texts that no answer may contain."""
    identities: int = 8
    role: str = "besiegers"
    """What ``worlds.besieger`` has them do."""
    listen: str = ""
    """Where the hostile relay listens, which is also a publisher."""
