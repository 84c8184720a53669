"""Nodes of a chain on loopback that answer by JSON-RPC: one of the tests, and Anvil, Foundry's node of Ethereum."""

from __future__ import annotations

import hashlib
import http.server
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from worlds.eventually import PATIENCE
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


# Anvil, Foundry's node of Ethereum, on loopback: real blocks, transactions and logs. ``make anvil`` brings it.

FOLDER = Path(__file__).parents[2] / ".venv/share/odfd/anvil/node_modules/@foundry-rs"
FINAL: Final = 2
"""Blocks behind the newest one after which a block is final: two epochs, of one slot each here."""
_EMITTER: Final = "0x601480600b6000396000f3" + "602035600035604036038060406000376000a200"
"""A contract that logs what it is called with: two topics of 32 bytes, then data (LOG2)."""
_LISTENS: Final = "Listening on "


class Anvil:
    """A running node with one contract, which logs what it is asked to."""

    def __init__(self, url: str) -> None:
        self.url = url
        (self._account, *_) = self.call("eth_accounts")
        self.contract: str = self._mined({"data": _EMITTER})["contractAddress"]

    def call(self, method: str, *given: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
        found = httpx.post(self.url, json=body, timeout=PATIENCE).json()
        assert "error" not in found, found
        return found["result"]

    def log(self, topics: tuple[str, str], data: str) -> int:
        """Logs in a block of its own, and returns the block's number."""
        call = "0x" + "".join(each.removeprefix("0x") for each in (*topics, data))
        return int(self._mined({"to": self.contract, "data": call})["blockNumber"], 16)

    def mine(self, blocks: int) -> None:
        self.call("anvil_mine", hex(blocks))

    def reorganise(self, depth: int) -> None:
        """Replaces the newest blocks by others without transactions."""
        self.call("anvil_reorg", depth, [])

    def _mined(self, transaction: dict[str, str]) -> dict[str, Any]:
        """Returns the receipt once it is mined: an answer with the hash alone may come before that (EIP-7966)."""
        found: dict[str, Any] = self.call("eth_sendTransactionSync", {"from": self._account, **transaction})
        assert found["status"] == "0x1", found
        return found


@contextmanager
def anvil_served(chain: int = 31337) -> Iterator[Anvil]:
    """A new chain. Skips where the program is not here."""
    program = next(iter(FOLDER.glob("anvil-*/bin/anvil")), None)
    if program is None:
        pytest.skip("no node of Ethereum is here: make anvil")
    command = [
        str(program), "--port", "0", "--chain-id", str(chain), "--slots-in-an-epoch", "1", "--accounts", "1",
        "--threads", "1",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(line for line in process.stdout if line.startswith(_LISTENS)).removeprefix(_LISTENS)
            yield Anvil(f"http://{address.strip()}")
        finally:
            process.terminate()
            process.communicate()
