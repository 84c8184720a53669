"""A node of a chain on loopback that answers by JSON-RPC, as execution clients do: blocks, logs, limits, histories."""

from __future__ import annotations

import hashlib
import http.server
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from worlds.http_served import HttpServer, serving

ROCKET = "0xae78736cd615f374d3085123a210448e74fc6393"
MINTED = "TokensMinted(address indexed to, uint256 amount, uint256 ethAmount, uint256 time)"


class Chain:
    """What the node knows."""

    def __init__(self) -> None:
        self.url = ""
        self.id = 1
        self.final = 0
        self.fork = ""
        self.logs: list[dict[str, Any]] = []
        self.most_blocks = 1 << 60
        """Of one question; more are refused, as providers do."""
        self.asked: list[tuple[str, list[Any]]] = []
        self.bent: Any = None
        """Given a method and its result, gives another result."""
        self.status = 200

    def hash(self, number: int) -> str:
        return "0x" + hashlib.sha256(f"{self.fork}{number}".encode()).hexdigest()

    def log(self, block: int, index: int, topics: list[str], data: str, address: str = ROCKET) -> None:
        self.logs.append(
            {
                "blockNumber": hex(block), "blockHash": self.hash(block), "transactionIndex": "0x1",
                "transactionHash": "0x" + "ab" * 32, "logIndex": hex(index), "address": address, "topics": topics,
                "data": data, "removed": False,
            }
        )  # fmt: skip

    def answer(self, method: str, given: list[Any]) -> Any:
        self.asked.append((method, given))
        found = getattr(self, method)(*given)
        return found if self.bent is None else self.bent(method, found)

    def eth_chainId(self) -> str:
        return hex(self.id)

    def eth_getBlockByNumber(self, number: str, whole: bool) -> Any:
        assert not whole
        block = self.final if number == "finalized" else int(number, 16)
        if block > self.final + 64:
            return None
        return {"number": hex(block), "hash": self.hash(block), "timestamp": hex(1_600_000_000 + 12 * block)}

    def eth_getLogs(self, wanted: dict[str, Any]) -> Any:
        first, last = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
        if last - first + 1 > self.most_blocks:
            raise LookupError("too many blocks")
        return [
            each
            for each in self.logs
            if first <= int(each["blockNumber"], 16) <= last
            and ("address" not in wanted or each["address"] in wanted["address"])
            and all(
                want is None or each["topics"][place : place + 1] == [want]
                for place, want in enumerate(wanted.get("topics", []))
            )
        ]


@contextmanager
def chain_served() -> Iterator[Chain]:
    chain = Chain()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answers = [self.one(each) for each in (asked if isinstance(asked, list) else [asked])]
            body = json.dumps(answers[::-1] if isinstance(asked, list) else answers[0]).encode()
            self.send_response(chain.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def one(self, each: dict[str, Any]) -> dict[str, Any]:
            try:
                return {"jsonrpc": "2.0", "id": each["id"], "result": chain.answer(each["method"], each["params"])}
            except LookupError as error:
                return {"jsonrpc": "2.0", "id": each["id"], "error": {"code": -32005, "message": str(error)}}

        def log_message(self, *_: Any) -> None:
            pass

    with serving(HttpServer(Handler)) as server:
        chain.url = server.url
        yield chain
