"""Anvil, Foundry's node of Ethereum, on loopback: real blocks, transactions and logs. ``make anvil`` brings it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from worlds.eventually import PATIENCE

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
        hash_ = self.call("eth_sendTransaction", {"from": self._account, **transaction})
        found: dict[str, Any] = self.call("eth_getTransactionReceipt", hash_)
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
