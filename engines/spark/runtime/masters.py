"""Checks addresses of a Spark cluster's master: their form, and whether they accept connections.

Does not import Spark, so that a daemon can check a setting without loading it. Spark itself would try an unreachable
address for a minute, and then say that all masters are unresponsive.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from chain.errors import Invalid
from engines.errors import EngineLost

REACH_SECONDS: Final = 5.0
"""Seconds for one address to accept a connection."""
EXECUTOR_SECONDS: Final = 300.0
"""Seconds for the first executors to come and report what they run."""
_FORMS: Final = "write spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
_WEB_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Master:
    """The address of a cluster's master."""

    url: str
    """The address as Spark takes it."""
    places: tuple[tuple[str, int], ...]
    """Hosts and ports, one of which must accept connections; empty for YARN, whose address is among its settings."""


def parse_master(text: str) -> Master:
    """Parses the address of a cluster. Raises Invalid. Pure."""
    kind, _, rest = text.partition("://")
    if text == "yarn":
        return Master(text, ())
    if kind == "spark":
        return Master(text, tuple(_place(text, each) for each in rest.split(",")))
    if kind == "k8s":
        scheme, parted, place = rest.partition("://")
        return Master(text, (_place(text, place if parted else rest, _WEB_PORTS.get(scheme if parted else "https")),))
    raise Invalid(f"not the master of a Spark cluster: {text!r}", rule="cluster-master", hint=_FORMS)


def _place(text: str, place: str, usual: int | None = None) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port or usual
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise Invalid(
            f"the master of a Spark cluster needs a host and a port: {text!r}", rule="cluster-master", hint=_FORMS
        )
    return host, port


def check_reachable(master: Master, seconds: float = REACH_SECONDS) -> None:
    """Raises EngineLost when no address of the master accepts a connection."""
    reasons = []
    for host, port in master.places:
        try:
            with socket.create_connection((host, port), timeout=seconds):
                return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    if reasons:
        raise EngineLost(
            f"no master of the Spark cluster {master.url} can be reached: {'; '.join(reasons)}",
            rule="cluster-master",
            hint="is it running, and does this machine reach it? engine.master, or --master, names it",
        )
