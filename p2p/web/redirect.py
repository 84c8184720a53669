"""Decides where a server may lead: to places of the Internet, and elsewhere only from a place that is not of it itself.

What a server says must not make us give up TLS, nor look into a house that the server itself cannot see. That an answer
came from inside is known by the address that was dialled, not by a name.
"""

from __future__ import annotations

from typing import Final

import httpx

from p2p.ip import is_global
from p2p.web.client import came_from

SCHEMES: Final = ("http", "https")


def keeps_scheme(here: httpx.URL, there: httpx.URL) -> bool:
    """Whether a redirect stays on the web, and with TLS where there was TLS."""
    return there.scheme in SCHEMES and (here.scheme != "https" or there.scheme == "https")


def is_from_inside(response: httpx.Response) -> bool:
    """Of an answer that is still open: whether it came from this machine or a private network.

    One that came by way of a proxy counts as of the Internet.
    """
    address = came_from(response)
    return address is not None and not is_global(address)
