"""Calls one webhook: a POST to a checked address, without redirects, of whose answer only the status is read.

A host is resolved once, and only permitted addresses are dialled: those of the Internet over TLS, and those of networks
that the owner of the node names. Proxies named in the environment are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpx
import trio

from chain.errors import Remote
from p2p.dial import NotAllowed
from p2p.ip import Allows, Ip, IpNetwork, within
from p2p.web.client import machine_authorities, new_client

CALL_SECONDS: Final = 10.0
_RULE: Final = "webhook-unreachable"
_HINT: Final = "it is tried again by itself; odfctl docs webhooks says what a receiver does"
_TAKEN: Final = (httpx.ReadError, httpx.ReadTimeout, httpx.WriteError, httpx.WriteTimeout, httpx.RemoteProtocolError)
"""What fails at a server that took the connection."""


def judge(url: str, inside: tuple[IpNetwork, ...]) -> Allows:
    """Returns which addresses ``url`` may lead to; without TLS none on the Internet."""
    # Without TLS a call, and its signature, may only cross networks that the owner names.
    if url.startswith("https:"):
        return within(inside)

    def is_inside(ip: Ip) -> bool:
        return any(ip.version == network.version and ip in network for network in inside)

    return is_inside


async def call(url: str, headers: Mapping[str, str], body: bytes, allows: Allows) -> int:
    """Makes the call and returns the status, which is 2xx. Raises Remote for another status, or without an answer."""
    status = await _ask("POST", url, headers, body, allows, CALL_SECONDS)
    if not 200 <= status < 300:
        raise Remote(f"it answered {status}", rule=_RULE, hint=_HINT)
    return status


async def reach(url: str, allows: Allows) -> str:
    """Asks a server for a HEAD, and returns why it gave no answer; empty if it did, whatever it said.

    A server that takes connections may answer calls all the same. Raises Remote if none is there.
    """
    try:
        # Half of the time for a connection, so that a server that takes it and stays silent is told from none.
        await _ask("HEAD", url, {}, b"", allows, CALL_SECONDS / 2)
    except Remote as fault:
        if isinstance(fault.__cause__, _TAKEN):
            return fault.message
        raise
    return ""


async def _ask(
    method: str, url: str, headers: Mapping[str, str], body: bytes, allows: Allows, step_seconds: float
) -> int:
    """Makes a request and returns the status of the answer. Raises Remote without one."""
    try:
        # httpx limits each step: a server that sends a header a second would hold one of the few calls for ever.
        with trio.fail_after(CALL_SECONDS):
            async with (
                # ``trust_env=False``: a proxy would dial the address itself, and no rule of ``allows`` would hold.
                new_client(allows, timeout=step_seconds, verify=machine_authorities(), trust_env=False) as client,
                client.stream(method, url, headers=dict(headers), content=body) as response,
            ):
                # The body is not read: it may be endless.
                return response.status_code
    except NotAllowed as error:
        hint = "name its network in webhooks.inside, if it is right; http:// is for such networks alone"
        raise Remote(
            f"{httpx.URL(url).host} is where no webhook is called", rule="webhook-address", hint=hint
        ) from error
    except (trio.TooSlowError, httpx.TimeoutException) as error:
        raise Remote(f"no answer in {step_seconds:g} seconds", rule=_RULE, hint=_HINT) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise Remote((str(error) or type(error).__name__)[:300], rule=_RULE, hint=_HINT) from error
