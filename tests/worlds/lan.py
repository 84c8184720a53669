"""A network of the test's own: nodes in network namespaces, and a switch between them that delays, loses and cuts.

    namespace 1 [lan0 10.77.0.1] ── TUN ──┐
    namespace 2 [lan0 10.77.0.2] ── TUN ──┤ Switch: a thread of the test
    …                                     ┘

Each namespace is held open by a child, which makes the TUN device and hands its descriptor up. Every IP packet passes
the switch, which draws what becomes of it; no kernel module is needed (``tc netem`` is one that many machines lack).
Namespaces and devices are gone with the children. Needs root, or a user namespace and an open ``/dev/net/tun``.
"""

from __future__ import annotations

import array
import fcntl
import heapq
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 1, 0x1000
MTU = 1400
SECONDS = 120
WAITING = 20_000
"""Packets on their way; more are lost, as in any switch."""


class NoLan(Exception):
    """This machine lets nobody make one; says why."""


@dataclass
class Place:
    """One namespace."""

    number: int
    holder: subprocess.Popen[bytes]
    tun: int
    entering: Sequence[str]
    """What stands before a command that is to run inside."""

    @property
    def namespaces(self) -> list[str]:
        kinds = ("user", "net") if os.geteuid() else ("net",)
        return [f"/proc/{self.holder.pid}/ns/{kind}" for kind in kinds]

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number}"


@dataclass
class Weather:
    """What befalls packets. Seconds; ``loss`` is the share of packets that vanish."""

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0


@dataclass
class Switch:
    """Carries packets between places until closed. What is said to it counts from the next packet on."""

    places: Sequence[Place]
    seed: int
    weather: Weather = field(default_factory=Weather)

    def __post_init__(self) -> None:
        self._side: dict[int, int] = {}
        self._rng = Random(self.seed)
        self._due: list[tuple[float, int, int, bytes]] = []
        self._count = self.lost = self.carried = 0
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="switch")
        self._thread.start()

    def part(self, *groups: Collection[int]) -> None:
        """Numbers of places by group: nothing passes between groups."""
        self._side = {number: group for group, numbers in enumerate(groups) for number in numbers}

    def heal(self) -> None:
        self._side = {}

    def close(self) -> None:
        self._waker.send(b"x")
        self._thread.join(SECONDS)
        self._wake.close()
        self._waker.close()

    def _run(self) -> None:
        tuns = {place.number: place.tun for place in self.places}
        with selectors.DefaultSelector() as selector:
            for number, tun in tuns.items():
                os.set_blocking(tun, False)
                selector.register(tun, selectors.EVENT_READ, number)
            selector.register(self._wake, selectors.EVENT_READ, 0)
            while True:
                wait = None if not self._due else max(0.0, self._due[0][0] - time.monotonic())
                for key, _ in selector.select(wait):
                    if not key.data:
                        return
                    self._take(key.fd, key.data)
                now = time.monotonic()
                while self._due and self._due[0][0] <= now:
                    _, _, number, packet = heapq.heappop(self._due)
                    self._give(tuns[number], packet)

    def _take(self, tun: int, source: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(tun, 1 << 16)
            except BlockingIOError:
                return
            if len(packet) < 20 or packet[0] >> 4 != 4 or packet[16:19] != b"\x0a\x4d\x00":
                continue
            target, weather = packet[19], self.weather
            is_cut = self._side.get(source, 0) != self._side.get(target, 0)
            known = any(place.number == target for place in self.places)
            if not known or is_cut or len(self._due) >= WAITING or self._rng.random() < weather.loss:
                self.lost += 1
                continue
            self.carried += 1
            self._count += 1
            due = time.monotonic() + weather.delay + weather.jitter * self._rng.random()
            heapq.heappush(self._due, (due, self._count, target, packet))

    def _give(self, tun: int, packet: bytes) -> None:
        try:
            os.write(tun, packet)
        except OSError:
            self.lost += 1


@contextmanager
def open_lan(count: int, seed: int) -> Iterator[Switch]:
    """Places 1 … ``count``. Raises NoLan."""
    with ExitStack() as stack:
        places = [stack.enter_context(_place(number)) for number in range(1, count + 1)]
        switch = Switch(places, seed)
        stack.callback(switch.close)
        yield switch


@contextmanager
def _place(number: int) -> Iterator[Place]:
    if not TUN.exists():
        raise NoLan(f"there is no {TUN}")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    ours, theirs = socket.socketpair()
    command = ["unshare", "--net", *user, sys.executable, __file__, f"10.77.0.{number}", str(theirs.fileno())]
    try:
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[theirs.fileno()])
    except FileNotFoundError as error:
        raise NoLan("there is no unshare") from error
    finally:
        theirs.close()
    assert holder.stdin is not None
    assert holder.stderr is not None
    with holder, ours, ExitStack() as stack:
        stack.callback(holder.stdin.close)
        ours.settimeout(SECONDS)
        _, data, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
        if not data:
            raise NoLan(holder.stderr.read().decode(errors="replace").strip().splitlines()[-1])
        (tun,) = array.array("i", data[0][2])
        stack.callback(os.close, tun)
        inside = ["--user", "--preserve-credentials"] if user else []
        yield Place(number, holder, tun, ("nsenter", f"--target={holder.pid}", "--net", *inside))


def _hold(address: str, channel: int) -> None:
    """Inside of a new namespace: make the device, hand it up, and wait for the end of the input."""
    tun = os.open(TUN, os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", b"lan0", _IFF_TUN | _IFF_NO_PI))
    for words in (
        f"addr add {address}/24 dev lan0", f"link set lan0 mtu {MTU} txqueuelen 5000 up", "link set lo up",
    ):  # fmt: skip
        subprocess.run(["ip", *words.split()], check=True)
    with socket.socket(fileno=channel) as up:
        socket.send_fds(up, [b"x"], [tun])
    os.close(tun)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    _hold(sys.argv[1], int(sys.argv[2]))
