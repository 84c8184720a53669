"""An internet of network namespaces: public places, and places behind routers with real NATs of Linux (nftables).

All public places are on one link with addresses that count as of the Internet. Each router translates in its own way
(``NATS``); both homes use the same private addresses, as homes do. It takes root, ``ip`` and ``nft``; elsewhere tests
skip by name. A function is run in a place by a thread of its own, and a program by a prefix of its command.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, local
from typing import Any, Final, Generic, TypeVar

import trio
from trio._core import _thread_cache
from trio._core._thread_cache import ThreadCache

T = TypeVar("T")
CLONE_NEWNET: Final = 0x40000000
_NUMBERS: Final = itertools.count(1)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_here: Final = local()
"""Of a thread that entered a place: ``workers``."""

_TRANSLATE: Final = """
table ip nat {
  map mapped { type inet_service : ipv4_addr . inet_service; flags dynamic,timeout; timeout 5m; }
  set spoken { type inet_service . ipv4_addr; flags dynamic,timeout; timeout 5m; }
  chain pre {
    type nat hook prerouting priority -100
    PRE
  }
  chain post {
    type nat hook postrouting priority 100
    oifname "wan" POST
  }
}
table ip filter {
  chain input {
    type filter hook input priority 0
    iifname "wan" drop
  }
  chain forward {
    type filter hook forward priority 0
    iifname "wan" ct state new ct status & dnat == 0 drop
  }
}
"""
_REMEMBER: Final = "update @mapped { tcp sport : ip saddr . tcp sport }"
_ANYBODY: Final = 'iifname "wan" dnat ip to tcp dport map @mapped'
_SPOKEN: Final = 'iifname "wan" tcp dport . ip saddr @spoken dnat ip to tcp dport map @mapped'
NATS: Final = {
    "full cone": (_ANYBODY, f"{_REMEMBER} masquerade"),
    "address restricted": (_SPOKEN, f"{_REMEMBER} update @spoken {{ tcp sport . ip daddr }} masquerade"),
    "port restricted": ("", "masquerade"),
    "symmetric": ("", "masquerade fully-random"),
}
"""By name, what is done to what comes in and goes out. The first three keep one outer port for one inner port; the last
takes another at random for each connection. Who may use it: anybody; who was spoken to from it, from any of its ports;
who was spoken to, from that port alone."""


class NoNat(Exception):
    """Namespaces or NATs cannot be made here; says why."""


class Place:
    """A network namespace with an address; behind a router if ``router`` is one."""

    def __init__(self, name: str, address: str, router: Place | None = None) -> None:
        self.name = name
        self.address = address
        self.router = router

    @property
    def entering(self) -> list[str]:
        """What stands before a command that is run here."""
        return ["ip", "netns", "exec", self.name]

    @property
    def namespaces(self) -> list[str]:
        return [f"/run/netns/{self.name}"]

    def run(self, *command: str) -> None:
        _run(*self.entering, *command)

    def within(self, function: Callable[..., Awaitable[T]], *args: object) -> Running[T]:
        """Runs an async function here, in a thread with a loop of its own."""
        return Running(self, function, args)


class _Workers(ThreadCache):
    """Idle threads of trio, those of each place for themselves.

    A thread is born in the namespace of who begins it, and trio gives an idle one to any loop of the process. One that
    a place began would open sockets there for tests that know of no place, for as long as it is never idle for long.
    """

    def start_thread_soon(
        self, fn: Callable[[], Any], deliver: Callable[[Any], object], name: str | None = None
    ) -> None:
        there: ThreadCache | None = getattr(_here, "workers", None)
        start = super().start_thread_soon if there is None else there.start_thread_soon
        start(fn, deliver, name)


_thread_cache.THREAD_CACHE = _Workers()


class Running(Thread, Generic[T]):
    """An async function at work in a place. ``result`` waits for its end and raises what it raised."""

    def __init__(self, place: Place, function: Callable[..., Awaitable[T]], args: Sequence[object]) -> None:
        super().__init__(daemon=True)
        self._place, self._function, self._args = place, function, args
        self._outcome: T | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            enter(self._place.name)
            _here.workers = ThreadCache()
            self._outcome = trio.run(self._function, *self._args)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error

    def result(self, seconds: float = 60.0) -> T:
        self.join(seconds)
        assert not self.is_alive(), f"still at work in {self._place.name}"
        if self._error is not None:
            raise self._error
        return self._outcome  # type: ignore[return-value]


def enter(name: str) -> None:
    """This thread's sockets are those of the namespace from now on."""
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if _LIBC.setns(handle, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")
    finally:
        os.close(handle)


class Internet:
    """Made by ``open_internet``."""

    def __init__(self) -> None:
        self._prefix = f"odfnat{os.getpid()}n{next(_NUMBERS)}"
        self._count = itertools.count(1)
        self._made: list[str] = []
        self._hub = self._namespace("hub")
        self._hub_run("ip", "link", "add", "hub", "type", "bridge", "forward_delay", "0")
        self._hub_run("ip", "link", "set", "hub", "up")

    def public(self, families: Sequence[int] = (4,)) -> Place:
        """A place with addresses of the Internet of these families of IP, in a /16 (IPv4) and a /32 (IPv6) of its own.

        Raises NoNat if this machine has no IPv6.
        """
        number = next(self._count)
        name = self._namespace(f"p{number}")
        address = f"20.{number}.0.1"
        _run("ip", "link", "add", f"p{number}", "netns", self._hub, "type", "veth", "peer", "wan", "netns", name)
        self._hub_run("ip", "link", "set", f"p{number}", "master", "hub")
        self._hub_run("ip", "link", "set", f"p{number}", "up")
        sixth = f"2a00:{number:x}::1"
        place = Place(name, address if 4 in families else sixth)
        place.run("ip", "link", "set", "wan", "up")
        if 4 in families:
            place.run("ip", "address", "add", f"{address}/8", "dev", "wan")
        if 6 in families:
            if not Path("/proc/sys/net/ipv6").is_dir():
                raise NoNat("no IPv6 here")
            place.run("ip", "address", "add", f"{sixth}/16", "dev", "wan", "nodad")
        return place

    def home(self, nat: str) -> Place:
        """A place in a home, behind a router with such a NAT. Its address is private; its router's is not."""
        router = self.public()
        router.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        rules = _TRANSLATE.replace("PRE", NATS[nat][0]).replace("POST", NATS[nat][1])
        _run(*router.entering, "nft", "-f", "-", text=rules)
        name = self._namespace(f"h{next(self._count)}")
        _run("ip", "link", "add", "lan", "netns", router.name, "type", "veth", "peer", "eth0", "netns", name)
        router.run("ip", "address", "add", "192.168.1.1/24", "dev", "lan")
        router.run("ip", "link", "set", "lan", "up")
        place = Place(name, "192.168.1.2", router)
        place.run("ip", "link", "set", "eth0", "up")
        self.readdress(place, place.address)
        return place

    def readdress(self, place: Place, address: str) -> None:
        """The home gives the place another address, as a laptop that moves gets one."""
        place.run("ip", "address", "flush", "dev", "eth0")
        place.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        place.run("ip", "route", "add", "default", "via", "192.168.1.1")
        place.address = address

    def close(self) -> None:
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def _namespace(self, name: str) -> str:
        full = f"{self._prefix}{name}"
        _run("ip", "netns", "add", full)
        self._made.append(full)
        _run("ip", "-n", full, "link", "set", "lo", "up")
        return full

    def _hub_run(self, *command: str) -> None:
        _run("ip", "netns", "exec", self._hub, *command)


@contextmanager
def open_internet() -> Iterator[Internet]:
    """Raises NoNat."""
    if os.geteuid() != 0:
        raise NoNat("only root makes network namespaces")
    if missing := [each for each in ("ip", "nft", "sysctl") if shutil.which(each) is None]:
        raise NoNat(f"not installed: {', '.join(missing)} (Debian: iproute2, nftables, procps)")
    if not Path("/proc/sys/net/ipv4").is_dir():
        raise NoNat("no IPv4 here")
    try:
        world = Internet()
    except subprocess.CalledProcessError as error:
        raise NoNat(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
    try:
        yield world
    finally:
        world.close()


def _run(*command: str, text: str | None = None) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, input=text)
