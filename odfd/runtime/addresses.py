"""Opens TCP sockets at the addresses that settings name, and says where they are."""

from __future__ import annotations

import os
import socket
from typing import Any, Final, NamedTuple, cast

from chain.errors import Environment, Invalid
from config.check import HTTP_ADDRESS

BACKLOG: Final = 128


class ListenAddress(NamedTuple):
    host: str
    port: int
    setting: str
    """That names it, for people."""


def parsed(address: str, setting: str) -> ListenAddress:
    """Raises Invalid for what is no IP address and port."""
    found = HTTP_ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65_535:
        raise Invalid(
            f"{address[:80]!r} is no address to serve at", rule=_rule(setting),
            hint=f"{setting} holds an IP address and a port, like 127.0.0.1:8080 or [::1]:8080",
        )  # fmt: skip
    return ListenAddress(found[1].strip("[]"), int(found[2]), setting)


def listening(place: ListenAddress) -> socket.socket:
    """A socket of ours, to be closed by whoever asks. Raises Environment."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        return socket.create_server((place.host, place.port), family=family, backlog=BACKLOG)
    except OSError as error:
        told = os.strerror(error.errno) if error.errno else str(error)
        raise Environment(
            f"cannot serve HTTP at {place.host} port {place.port}: {told}", rule=_rule(place.setting),
            hint=f"another program may have the port: choose another in {place.setting}, or 0 for any",
        ) from error  # fmt: skip


def url_of(listener: socket.socket) -> str:
    host, port = cast("tuple[Any, ...]", listener.getsockname())[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _rule(setting: str) -> str:
    return setting.replace(".", "-")
