"""What logs of a chain of the EVM mean as a source, asked of a node on loopback, and of a real node of Ethereum."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid, Refused, Remote
from chain.model.events import SourceState
from chain.model.source import FetchEthereumLogs, ReadParquet
from odfd.ingest.clients.evm import answer, parse_event, selector
from odfd.ingest.fetch import evm
from odfd.ingest.fetch.dispatch import fetch
from odfd.ingest.fetch.evm import parse_filter
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import PATIENCE, IngestSettings
from p2p.dial import NotAllowed
from p2p.ip import is_global
from worlds.depth import share
from worlds.evm import FINAL, MINTED, ROCKET, Anvil, Chain, anvil_served, chain_served
from worlds.reading import read
from worlds.sources import asked_here

eth_abi = pytest.importorskip("eth_abi")
NOW = instant.parse("2050-01-01T12:00:00Z")
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
"""Of ERC-20, as everybody knows it."""
SOMEBODY = "0x" + "00" * 12 + "11" * 20
FILTER = f"address = X'{ROCKET[2:]}'\nand\nblock_number > 99"


@pytest.fixture
def chain() -> Iterator[Chain]:
    with chain_served() as served:
        yield served


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are made in this process, which starts at once."""
    monkeypatch.setattr(evm, "ask", asked_here(answer))


class Root:
    """A source, and what the chain of a dataset would say of it."""

    def __init__(self, chain: Chain | Anvil, folder: Path, **step: Any) -> None:
        given: dict[str, Any] = {"chain_id": 1, "node_url": "${{ env.NODE }}/", "filter": FILTER, **step}
        self.chain, self.folder, self.step = chain, folder, FetchEthereumLogs(**given)
        self.state: SourceState | None = None

    def fetch(self, **settings: Any) -> Any:
        said: dict[str, Any] = {"staging": self.folder, "variables": {"NODE": self.chain.url}, "patience": PATIENCE}
        job = FetchJob(state=self.state, now=NOW, folder=self.folder, settings=IngestSettings(**{**said, **settings}))
        return trio.run(fetch, self.step, job)

    def rows(self) -> list[dict[str, Any]]:
        found = self.fetch()
        if isinstance(found, Unchanged):
            return []
        self.state = found.state
        return pq.read_table(found.path).to_pylist()


def minted(chain: Chain, block: int, index: int = 0, amount: int = 5) -> None:
    data = eth_abi.encode(["uint256", "uint256", "uint256"], [amount, 7, 1_633_000_000]).hex()
    chain.log(block, index, [selector(parse_event(MINTED)), SOMEBODY], f"0x{data}")


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_logs_of_finalised_blocks_come_once(chain: Chain, tmp_path: Path) -> None:
    for block in (50, 120, 100, 200):
        minted(chain, block, amount=1 << 200)
    minted(chain, 120, index=3)
    chain.final = 150
    root = Root(chain, tmp_path, signature=MINTED)
    rows = root.rows()
    assert [(each["block_number"], each["log_index"]) for each in rows] == [(100, 0), (120, 0), (120, 3)]
    assert rows[0]["event"] == {
        "to": b"\x11" * 20, "amount": str(1 << 200), "ethAmount": "7", "time": "1633000000",
    }  # fmt: skip
    assert (rows[0]["block_hash"].hex(), rows[0]["address"].hex()) == (chain.hash(100)[2:], ROCKET[2:])
    assert rows[0]["block_timestamp"].timestamp() == 1_600_000_000 + 12 * 100
    assert rows[0]["topic2"] is None
    assert (
        read(tmp_path, (tmp_path / "logs.parquet").read_bytes(), ReadParquet()).column("event")[0] == rows[0]["event"]
    )
    assert root.state == SourceState(source_name="default", kind="odf/etag", value=f"150@{chain.hash(150)}")
    assert root.rows() == []
    chain.final = 250
    assert [each["block_number"] for each in root.rows()] == [200]
    wanted = [given[0] for method, given in chain.asked if method == "eth_getLogs"]
    assert wanted[-1]["fromBlock"] == hex(151)
    assert wanted[-1]["topics"] == [selector(parse_event(MINTED))]


@pytest.mark.usefixtures("here")
def test_another_history_of_the_chain_is_refused(chain: Chain, tmp_path: Path) -> None:
    """Attack T-SOURCE-03: an Ethereum node with another history, or a reorganisation, so that rows of two histories are
    mixed.

    Defence: only finalised blocks are read; the hash of the last block is in the chain with the rows, and another hash
    is refused.
    """
    minted(chain, 120)
    chain.final = 150
    root = Root(chain, tmp_path)
    assert len(root.rows()) == 1
    chain.final, chain.fork = 200, "other"
    with pytest.raises(Refused, match=r"block 150 is 0x.* there, and was 0x") as caught:
        root.rows()
    assert caught.value.rule == "evm-position"
    chain.fork, chain.id = "", 5
    with pytest.raises(Refused, match="a node of chain 5, and the source reads 1") as other:
        root.rows()
    assert other.value.rule == "evm-chain"
    chain.id, chain.final = 1, 80
    with pytest.raises(Remote, match="does not have block 150 yet"):
        root.rows()


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@settings(max_examples=share(40))
@given(st.lists(st.integers(100, 400), max_size=12), st.lists(st.integers(100, 420), max_size=4), st.integers(9, 90))
def test_however_ranges_and_pulls_are_cut_each_log_comes_once(blocks: list[int], finals: list[int], most: int) -> None:
    """A provider refuses ranges that are too wide, and transactions have few blocks and logs."""
    folder = tempfile.TemporaryDirectory(prefix="odfd-evm-")
    with folder as staging, chain_served() as chain, pytest.MonkeyPatch.context() as patched:
        patched.setattr(evm, "MOST_BLOCKS", 70)
        patched.setattr(evm, "MOST_LOGS", 3)
        patched.setattr(evm, "STRIDE", 64)
        for index, block in enumerate(blocks):
            minted(chain, block, index)
        chain.most_blocks = most
        root = Root(chain, Path(staging))
        taken: list[tuple[int, int]] = []
        for final in sorted([*finals, 420]):
            chain.final = final
            while True:
                found = root.fetch()
                if isinstance(found, Unchanged):
                    break
                root.state = found.state
                taken += [(each["block_number"], each["log_index"]) for each in pq.read_table(found.path).to_pylist()]
                if not found.has_more:
                    break
    assert taken == sorted((block, index) for index, block in enumerate(blocks))


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_ranges_whose_answer_is_too_large_are_asked_for_in_parts(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in range(100, 120):
        minted(chain, block)
    chain.final = 150
    monkeypatch.setattr(evm, "MAX_ANSWER", 6000)
    monkeypatch.setattr(evm, "MOST_DATA", 1000)
    root = Root(chain, tmp_path)
    found: list[int] = []
    while rows := root.rows():
        assert len(rows) < 20
        found += [each["block_number"] for each in rows]
    assert found == list(range(100, 120))
    monkeypatch.setattr(evm, "MAX_ANSWER", 500)
    with pytest.raises(Refused, match="larger than 500 bytes"):
        Root(chain, tmp_path).rows()


@pytest.mark.usefixtures("here")
def test_a_long_range_without_logs_is_passed_in_a_block_without_rows(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evm, "QUIET_BLOCKS", 100)
    chain.final = 150
    root = Root(chain, tmp_path)
    assert isinstance(root.fetch(), Unchanged)
    chain.final = 300
    found = root.fetch()
    assert isinstance(found, Fetched)
    assert read(tmp_path, found.path.read_bytes(), ReadParquet()).table.num_rows == 0
    assert found.state.value.startswith("300@")


def _bent(kind: str) -> Any:
    def bent(method: str, found: Any) -> Any:
        if method != "eth_getLogs" or not found:
            return found
        return {
            "twice": lambda: found * 2,
            "removed": lambda: [{**found[0], "removed": True}],
            "another contract": lambda: [{**found[0], "address": "0x" + "22" * 20}],
            "another block": lambda: [{**found[0], "blockNumber": "0x1"}],
            "another hash": lambda: [{**found[0], "blockHash": TRANSFER}],
            "no log": lambda: [{"block": 1}],
            "many topics": lambda: [{**found[0], "topics": [TRANSFER] * 5}],
            "odd data": lambda: [{**found[0], "data": "0x1"}],
        }[kind]()

    return bent


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "kind",
    ["twice", "removed", "another contract", "another block", "another hash", "no log", "many topics", "odd data"],
)
def test_a_node_that_gives_what_was_not_asked_for_is_refused(chain: Chain, tmp_path: Path, kind: str) -> None:
    """Attack T-SOURCE-03: an Ethereum node that gives logs of other contracts or blocks, a log twice, or a removed log.

    Defence: each log is compared with the question, and its block's hash with the block.
    """
    minted(chain, 120)
    chain.final, chain.bent = 150, _bent(kind)
    with pytest.raises(Remote, match=r"not asked for|not to the request|changed its blocks"):
        Root(chain, tmp_path).rows()
    chain.bent = None
    assert len(Root(chain, tmp_path).rows()) == 1


@pytest.mark.usefixtures("here")
def test_a_log_that_is_another_event_is_refused_by_its_place(chain: Chain, tmp_path: Path) -> None:
    chain.log(120, 2, [selector(parse_event(MINTED)), SOMEBODY], "0x11")
    chain.final = 150
    with pytest.raises(Invalid, match=r"log 2 of block 120 is no TokensMinted\(address,uint256,uint256,uint256\)"):
        Root(chain, tmp_path, signature=MINTED).rows()
    assert Root(chain, tmp_path).rows()[0]["data"] == b"\x11"


def test_answers_of_a_node_are_bounded_and_its_address_is_judged(chain: Chain, tmp_path: Path) -> None:
    """Attack T-SOURCE-04: an answer of an Ethereum node without end, or its address within our network in a source of
    another publisher.

    Defence: answers have a limit, and addresses are checked like those of web pages; data of contracts is decoded in a
    separate process.
    """
    minted(chain, 120)
    chain.final = 150
    with pytest.raises(Refused) as caught:
        Root(chain, tmp_path).fetch(max_source_bytes=100)
    assert caught.value.rule == "max-source-bytes"
    with pytest.raises(NotAllowed):
        Root(chain, tmp_path).fetch(may_dial=is_global)
    chain.status = 429
    with pytest.raises(Remote, match="answers 429"):
        Root(chain, tmp_path).fetch()


def test_selectors_are_those_that_everybody_knows() -> None:
    assert selector(parse_event("event Transfer(address indexed from, address indexed to, uint value);")) == TRANSFER
    asked = parse_filter("topic0 = eth_event_selector('Transfer(address,address,uint256)') AND block_number >= 5")
    assert asked.parameter_for(5, 9) == {"fromBlock": "0x5", "toBlock": "0x9", "topics": [TRANSFER]}
    two = parse_filter(f"address in (X'{ROCKET[2:]}', x'{'AB' * 20}') and block_number <= 7 and block_number > 2")
    assert (two.addresses, two.first, two.last) == ((ROCKET, "0x" + "ab" * 20), 3, 7)


@pytest.mark.slow
def test_the_process_makes_rows(chain: Chain, tmp_path: Path) -> None:
    minted(chain, 120)
    chain.final = 150
    assert Root(chain, tmp_path, signature=MINTED).rows()[0]["event"]["amount"] == "5"


# Logs of a chain, of a real node of Ethereum: what it calls final, how it answers, and another history of it.

PAID = "Paid(address indexed to, uint256 amount, string what)"


@pytest.fixture
def node() -> Iterator[Anvil]:
    with anvil_served() as served:
        yield served


def real_root(node: Anvil, folder: Path, url: str = "", **step: Any) -> Root:
    """Reads the contract of ``node``, from the node at ``url`` if one is named."""
    said = {"chain_id": 31337, "node_url": url or node.url, "filter": f"address = X'{node.contract[2:]}'", **step}
    return Root(node, folder, **{"signature": PAID, **said})


def paid(node: Anvil, amount: int, what: str = "bread") -> int:
    data = eth_abi.encode(["uint256", "string"], [amount, what]).hex()
    return node.log((selector(parse_event(PAID)), SOMEBODY), data)


@pytest.mark.usefixtures("here")
@pytest.mark.slow
def test_logs_of_a_real_node_come_once_and_decoded(node: Anvil, tmp_path: Path) -> None:
    """Blocks that it does not call final are not read; a second pull goes on behind the first."""
    first, second = paid(node, 1 << 200), paid(node, 5, "Käse")
    node.log(("0x" + "22" * 32, SOMEBODY), "00")  # another event of the contract
    root = real_root(node, tmp_path)
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


@pytest.mark.usefixtures("here")
def test_a_reorganisation_of_blocks_that_are_not_final_is_not_seen(node: Anvil, tmp_path: Path) -> None:
    kept = paid(node, 1)
    node.mine(FINAL)
    root = real_root(node, tmp_path)
    assert [each["block_number"] for each in root.rows()] == [kept]
    paid(node, 2)
    assert root.rows() == []
    node.reorganise(1)  # the block of the second is another one now
    again = paid(node, 3)
    node.mine(FINAL)
    assert [(each["block_number"], each["event"]["amount"]) for each in root.rows()] == [(again, "3")]


@pytest.mark.usefixtures("here")
def test_another_history_of_final_blocks_and_another_chain_are_refused(node: Anvil, tmp_path: Path) -> None:
    paid(node, 1)
    node.mine(10)
    root = real_root(node, tmp_path)
    assert len(root.rows()) == 1
    node.reorganise(11)
    with pytest.raises(Refused) as caught:
        root.rows()
    assert caught.value.rule == "evm-position"
    with pytest.raises(Refused, match="a node of chain 31337, and the source reads 1") as other:
        real_root(node, tmp_path, chain_id=1).rows()
    assert other.value.rule == "evm-chain"


@pytest.mark.usefixtures("here")
def test_a_position_that_the_node_does_not_have_yet_waits(node: Anvil, tmp_path: Path) -> None:
    """As of a node that is behind the one that was asked before."""
    paid(node, 1)
    node.mine(10)
    root = real_root(node, tmp_path)
    root.rows()
    with anvil_served() as behind:
        late = real_root(node, tmp_path, behind.url)
        late.state = root.state
        with pytest.raises(Remote, match="does not have block"):
            late.rows()
