"""One opener for all: nothing of ours but ``p2p.dial`` resolves a name, and nothing opens a connection beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from worlds.source_tree import called, nodes

TREE: Final = Path(__file__).parents[2]
ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd")
OPENING: Final = {
    "getaddrinfo", "gethostbyname", "gethostbyname_ex", "open_tcp_stream", "open_ssl_over_tcp_stream", "urlopen",
    "create_connection", "open_connection", "HTTPConnection", "HTTPSConnection", "AsyncClient",
    "AsyncConnectionPool", "AsyncHTTPTransport", "dial_addr", "insecure_channel", "secure_channel",
}  # fmt: skip
ALLOWED: Final = {
    ("p2p.dial", "getaddrinfo"): "the opener",
    ("p2p.web.client", "AsyncClient"): "its connections are opened by the opener",
    ("p2p.host.host", "dial_addr"): "what the opener resolved",
    ("engines.listen_address", "getaddrinfo"): "where to listen",
    ("engines.client", "insecure_channel"): "a unix socket",
    ("engines.spark.runtime.settings", "create_connection"): "the Spark cluster of the settings",
    ("engines.sandbox.escape_probe", "create_connection"): "an attempt to break out, which must fail",
    ("odfd.cli.commands.apply", "urlopen"): "a manifest whose URL a person types, in their own process",
    ("odfd.control.client", "HTTPConnection"): "a unix socket",
    ("odfd.ingest.clients.ftp", "create_connection"): "what the opener resolved, in a process apart",
    ("odfd.control.remote_node", "create_connection"): "a node whose URL a person types, in their own process",
}


def openings() -> Iterator[tuple[str, str]]:
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            name = ".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__")
            for node in nodes(path):
                if isinstance(node, ast.Call) and called(node) in OPENING:
                    yield name, called(node)


def test_nothing_opens_a_connection_beside_the_opener() -> None:
    found = set(openings())
    beside = sorted(found - ALLOWED.keys())
    assert not beside, f"these dial by themselves; p2p.dial judges what is dialled: {beside}"
    assert ("p2p.dial", "getaddrinfo") in found
