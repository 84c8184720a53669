"""Logs of a chain, of a real node of Ethereum: what it calls final, how it answers, and another history of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio

from chain import instant
from chain.errors import Refused, Remote
from chain.model.events import SourceState
from chain.model.source import FetchEthereumLogs
from odfd.ingest.clients.evm import answer, parse_event, selector
from odfd.ingest.fetch import evm
from odfd.ingest.fetch.dispatch import fetch
from odfd.ingest.fetch.source import FetchJob, Unchanged
from odfd.ingest.settings import PATIENCE, IngestSettings
from worlds.anvil import FINAL, Anvil, anvil_served
from worlds.sources import asked_here

eth_abi = pytest.importorskip("eth_abi")
NOW = instant.parse("2050-01-01T12:00:00Z")
PAID = "Paid(address indexed to, uint256 amount, string what)"
SOMEBODY = "0x" + "00" * 12 + "11" * 20


@pytest.fixture
def node() -> Iterator[Anvil]:
    with anvil_served() as served:
        yield served


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are made in this process, which starts at once."""
    monkeypatch.setattr(evm, "ask", asked_here(answer))


class Root:
    """A source, and what the chain of a dataset would say of it."""

    def __init__(self, node: Anvil, folder: Path, url: str = "", **step: Any) -> None:
        given = {"chain_id": 31337, "filter": f"address = X'{node.contract[2:]}'", "signature": PAID, **step}
        self.folder, self.step = folder, FetchEthereumLogs(node_url=url or node.url, **given)
        self.state: SourceState | None = None

    def rows(self) -> list[dict[str, Any]]:
        settings = IngestSettings(staging=self.folder, variables={}, patience=PATIENCE)
        job = FetchJob(state=self.state, now=NOW, folder=self.folder, settings=settings)
        found = trio.run(fetch, self.step, job)
        if isinstance(found, Unchanged):
            return []
        self.state = found.state
        return pq.read_table(found.path).to_pylist()


def paid(node: Anvil, amount: int, what: str = "bread") -> int:
    data = eth_abi.encode(["uint256", "string"], [amount, what]).hex()
    return node.log((selector(parse_event(PAID)), SOMEBODY), data)


@pytest.mark.slow
def test_logs_of_a_real_node_come_once_and_decoded(node: Anvil, tmp_path: Path) -> None:
    """Blocks that it does not call final are not read; a second pull goes on behind the first."""
    first, second = paid(node, 1 << 200), paid(node, 5, "Käse")
    node.log(("0x" + "22" * 32, SOMEBODY), "00")  # another event of the contract
    root = Root(node, tmp_path)
    assert [each["block_number"] for each in root.rows()] == [first]
    node.mine(FINAL)
    (row,) = root.rows()
    block = node.call("eth_getBlockByNumber", hex(second), False)
    assert row["event"] == {"to": b"\x11" * 20, "amount": "5", "what": "Käse"}
    assert (row["block_number"], row["block_hash"].hex()) == (second, block["hash"][2:])
    assert row["block_timestamp"].timestamp() == int(block["timestamp"], 16)
    assert (row["address"].hex(), row["transaction_hash"].hex()) == (node.contract[2:], block["transactions"][0][2:])
    assert root.rows() == []
    final = int(node.call("eth_blockNumber"), 16) - FINAL
    assert root.state is not None
    assert root.state.value == f"{final}@{node.call('eth_getBlockByNumber', hex(final), False)['hash']}"


def test_a_reorganisation_of_blocks_that_are_not_final_is_not_seen(node: Anvil, tmp_path: Path) -> None:
    kept = paid(node, 1)
    node.mine(FINAL)
    root = Root(node, tmp_path)
    assert [each["block_number"] for each in root.rows()] == [kept]
    paid(node, 2)
    assert root.rows() == []
    node.reorganise(1)  # the block of the second is another one now
    again = paid(node, 3)
    node.mine(FINAL)
    assert [(each["block_number"], each["event"]["amount"]) for each in root.rows()] == [(again, "3")]


def test_another_history_of_final_blocks_and_another_chain_are_refused(node: Anvil, tmp_path: Path) -> None:
    paid(node, 1)
    node.mine(10)
    root = Root(node, tmp_path)
    assert len(root.rows()) == 1
    node.reorganise(11)
    with pytest.raises(Refused) as caught:
        root.rows()
    assert caught.value.rule == "evm-position"
    with pytest.raises(Refused, match="a node of chain 31337, and the source reads 1") as other:
        Root(node, tmp_path, chain_id=1).rows()
    assert other.value.rule == "evm-chain"


def test_a_position_that_the_node_does_not_have_yet_waits(node: Anvil, tmp_path: Path) -> None:
    """As of a node that is behind the one that was asked before."""
    paid(node, 1)
    node.mine(10)
    root = Root(node, tmp_path)
    root.rows()
    with anvil_served() as behind:
        late = Root(node, tmp_path, behind.url)
        late.state = root.state
        with pytest.raises(Remote, match="does not have block"):
            late.rows()
