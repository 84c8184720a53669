"""Decides which addresses may be contacted for sources that strangers declared, and what such servers are told."""

from __future__ import annotations

import ipaddress
from typing import Final

CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Headers by which a server knows who asks, in lower case."""


def is_public(address: str) -> bool:
    """Not of this machine, its network, or any range that is not of the Internet."""
    return ipaddress.ip_address(address.partition("%")[0]).is_global
