"""Runs the other process of the network rows: ``python -m bench.giver STATE SIZE``.

Opens the state directory ``STATE`` and serves it as a node does, over the real host; beside that it sends the same
object over a bare TLS socket, echoes on a stream and on a TLS socket. Prints where, as one line of JSON; ends when its
standard input does.
"""

from __future__ import annotations

import datetime as dt
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from chain.ids import DatasetId
from odfd.network.library import ServingLibrary, ServingTerms
from odfd.network.statement_store import LedgerStatementStore
from odfd.runtime.clock import SystemClock
from odfd.store.directory import StateDirectory, open_state_directory
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.host.host import Host, open_host

ECHO: Final = "/odf/bench/echo/1"
MESSAGE: Final = 32
_PART: Final = 1 << 20
Handler: TypeAlias = Callable[[trio.abc.Stream], Awaitable[None]]


@asynccontextmanager
async def serving(
    home: StateDirectory, seed: bytes, listen: Sequence[str] = ()
) -> AsyncIterator[tuple[Host, ReplicationDriver]]:
    """Runs the network layer of a node over its state: host, gossip, driver, with its library and statement store."""
    now = SystemClock().now

    def reach(dataset: DatasetId) -> int:
        head = home.chains.chain(dataset).head()
        return head.size if head else 0

    library = ServingLibrary(
        home.database, home.chains, home.objects, ServingTerms(lambda some, _=None: frozenset(some), reach), now
    )
    board = LedgerStatementStore(home.database, home.chains, now, lambda some, _=None: frozenset(some))
    async with (
        open_host(seed, listen) as host,
        open_network(host) as network,
        trio.open_nursery() as nursery,
    ):
        settings = ReplicationSettings(network="bench")
        driver = ReplicationDriver(network, library, board, settings, Random(seed), now)
        await nursery.start(driver.run)  # type: ignore[arg-type]  # trio cannot name what it passes
        yield host, driver
        nursery.cancel_scope.cancel()


def certificate(folder: Path) -> ssl.SSLContext:
    """Makes a self-signed certificate for tests."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, SHA256())
    )
    pem = folder / "bench.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(private + made.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


async def main(state: Path, size: int) -> None:
    with open_state_directory(state) as home:
        async with (
            serving(home, b"g" * 32, ["/ip4/127.0.0.1/tcp/0"]) as (host, _),
            trio.open_nursery() as nursery,
        ):
            host.set_handler(ECHO, _echo)
            context = certificate(state)
            ports = [await _serve(nursery, context, handler) for handler in (_sender(home, size), _echo)]
            print(json.dumps({"address": host.addresses()[0], "object": ports[0], "echo": ports[1]}), flush=True)
            await trio.lowlevel.FdStream(0).receive_some(1)
            nursery.cancel_scope.cancel()


async def _serve(nursery: trio.Nursery, context: ssl.SSLContext, handler: Handler) -> int:
    listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, handler, listeners)
    return int(listeners[0].transport_listener.socket.getsockname()[1])  # type: ignore[attr-defined]


def _sender(home: StateDirectory, size: int) -> Handler:
    """Sends the one large object that there is, to whoever connects."""

    async def send(stream: trio.abc.Stream) -> None:
        name = next(name for name in home.objects.names() if home.objects.size(name) == size)
        async with stream:
            for offset in range(0, size, _PART):
                await stream.send_all(await trio.to_thread.run_sync(home.objects.read, name, offset, _PART))

    return send


async def _echo(stream: trio.abc.Stream, _: object = None) -> None:
    while data := await stream.receive_some(MESSAGE):
        await stream.send_all(data)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
