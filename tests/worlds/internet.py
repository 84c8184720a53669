"""A little Internet on loopback: names that a test resolves, otherwise each time if it likes, and addresses of servers.

What is dialled is written down as it was asked of the kernel, before it is diverted.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import trio
from trio._socket import _SocketType


class Internet:
    """``names``: the answers to questions for a name, one after the other, the last for ever.

    ``servers``: addresses of the Internet, and the port of this machine that each leads to.
    """

    def __init__(self) -> None:
        self.names: dict[str, list[Sequence[str]]] = {}
        self.servers: dict[str, int] = {}
        self.dialled: list[str] = []
        self.asked: defaultdict[str, int] = defaultdict(int)

    def __call__(self, server: int, address: str = "93.184.216.34", **names: Sequence[Sequence[str]]) -> None:
        """``names`` spell a dot as ``_``."""
        self.servers[address] = server
        self.names |= {name.replace("_", "."): list(answers) for name, answers in names.items()}

    @contextmanager
    def open(self) -> Iterator[Internet]:
        """In the run of trio that is current."""
        resolver = trio.socket.set_custom_hostname_resolver(_Resolver(self))
        factory = trio.socket.set_custom_socket_factory(_Factory(self))
        try:
            yield self
        finally:
            trio.socket.set_custom_hostname_resolver(resolver)
            trio.socket.set_custom_socket_factory(factory)

    def look_up(self, name: str) -> Sequence[str]:
        answers = self.names.get(name)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.asked[name] += 1
        return answers.pop(0) if len(answers) > 1 else answers[0]


class _Resolver(trio.abc.HostnameResolver):
    def __init__(self, internet: Internet) -> None:
        self._internet = internet

    async def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        await trio.lowlevel.checkpoint()
        found: list[Any] = []
        for address in self._internet.look_up(host.decode() if isinstance(host, bytes) else host):
            found += [
                each
                for each in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
                if family in (0, each[0])
            ]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "No address of this family")
        return found

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        raise NotImplementedError


class _Factory(trio.abc.SocketFactory):
    def __init__(self, internet: Internet) -> None:
        self._internet = internet

    def socket(self, family: Any = -1, type: Any = -1, proto: Any = -1) -> Any:
        return _Diverted(socket.socket(family, type, proto), self._internet)


class _Diverted(_SocketType):
    def __init__(self, sock: socket.socket, internet: Internet) -> None:
        super().__init__(sock)
        self._internet = internet
        self._there: Any = None

    async def connect(self, address: Any) -> None:
        self._there = address
        self._internet.dialled.append(address[0])
        port = self._internet.servers.get(address[0])
        if port is not None and self.family == socket.AF_INET6:
            raise OSError("this Internet has no servers of IPv6")
        await super().connect(address if port is None else ("127.0.0.1", port))

    def getpeername(self) -> Any:
        return self._there or super().getpeername()
