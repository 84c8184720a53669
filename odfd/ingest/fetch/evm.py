"""Fetches ``EthereumLogs`` sources: logs of finalised blocks after the position in the chain, in ranges of blocks.

The position is the number and the hash of the last block whose logs were taken, written together with the rows. A node
with another block at that number has another history, and is refused. Blocks that are not final are not read.

kamu takes any SQL condition as a filter. Here it is conditions joined by ``and``, each of which a node can evaluate;
others are refused: they belong to ``preprocess``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import trio

from chain.errors import Invalid, Refused, Remote
from chain.model.events import SourceState
from chain.model.source import FetchEthereumLogs, ReadStep
from odfd.ingest.clients.evm import (
    POSITION_RULE,
    RULE,
    BlockPosition,
    DecodeJob,
    DecodeResult,
    EvmBlock,
    EvmLog,
    LogRow,
    Quantity,
    decode_position,
    main,
    parse_event,
    selector,
)
from odfd.ingest.fetch.fetch_process import TimeLimit, ask
from odfd.ingest.fetch.page import page
from odfd.ingest.fetch.source import (
    DEFAULT_SOURCE,
    ETAG,
    Fetched,
    FetchJob,
    FetchOutcome,
    Source,
    Unchanged,
    check_rows,
)
from odfd.ingest.fetch.url import address_of, remedy, save
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import TEMPLATE, FilledTemplate, check_url_password, fill
from odfd.runtime.extensions import check_client

FILTER_RULE: Final = "evm-filter"
MAX_BLOCK: Final = (1 << 63) - 1
_MAX_ADDRESSES: Final = 1_000
_HEX: Final = r"(?:[Xx]'([0-9a-fA-F]+)')"
# An "and" within a text counts as text: an even number of quotes follows a separator.
_AND: Final = re.compile(r"\s+and\s+(?=(?:[^']*'[^']*')*[^']*\Z)", re.IGNORECASE)
_BLOCK: Final = re.compile(r"block_number\s*(>=|<=|=|>|<)\s*(\d{1,18})\Z", re.IGNORECASE)
_ADDRESS: Final = re.compile(rf"address\s*(?:=\s*{_HEX}|in\s*\(([^()]*)\))\Z", re.IGNORECASE)
_TOPIC: Final = re.compile(rf"topic([0-3])\s*=\s*(?:{_HEX}|eth_event_selector\s*\(\s*'([^']*)'\s*\))\Z", re.IGNORECASE)
_ADDRESS_DIGITS: Final = 40
_TOPIC_DIGITS: Final = 64


class LogFilter(NamedTuple):
    """The logs that are requested from a node."""

    first: int = 0
    last: int = MAX_BLOCK
    addresses: tuple[str, ...] = ()
    """Addresses of contracts; empty: logs of all contracts."""
    topics: tuple[str | None, ...] = (None, None, None, None)

    def parameter_for(self, first: int, last: int) -> dict[str, object]:
        """Returns the parameter of ``eth_getLogs`` for a range of blocks, both ends included."""
        topics = list(self.topics)
        while topics and topics[-1] is None:
            topics.pop()
        found: dict[str, object] = {"fromBlock": hex(first), "toBlock": hex(last)}
        if self.addresses:
            found["address"] = list(self.addresses)
        return found | ({"topics": topics} if topics else {})

    def fits(self, address: str, topics: tuple[str, ...]) -> bool:
        """Whether a log has one of the addresses and all topics of the filter."""
        wanted = [(number, each) for number, each in enumerate(self.topics) if each is not None]
        return (not self.addresses or address in self.addresses) and all(
            number < len(topics) and topics[number] == each for number, each in wanted
        )


def parse_filter(text: str | None) -> LogFilter:
    """Parses a filter. Raises Invalid."""
    found = LogFilter()
    for term in _AND.split(text.strip()) if text and text.strip() else []:
        found = _narrow(found, term.strip())
    if found.first > found.last:
        raise Invalid("no block fits the filter", rule=FILTER_RULE, hint="look at its conditions on block_number")
    return found


def with_topic(found: LogFilter, topic: str, at: int = 0) -> LogFilter:
    """Narrows a filter to a topic at position ``at``. Raises Invalid if it requires another value there."""
    if found.topics[at] not in (None, topic):
        raise Invalid(f"the filter asks for two values of topic{at}", rule=FILTER_RULE, hint="one of them is enough")
    return found._replace(topics=(*found.topics[:at], topic, *found.topics[at + 1 :]))


def _narrow(found: LogFilter, term: str) -> LogFilter:
    if said := _BLOCK.match(term):
        sign, number = said[1], int(said[2])
        first = number + (sign == ">") if sign in (">", ">=", "=") else 0
        last = number - (sign == "<") if sign in ("<", "<=", "=") else MAX_BLOCK
        return found._replace(first=max(found.first, first), last=min(found.last, last))
    if said := _ADDRESS.match(term):
        if found.addresses:
            raise Invalid("the filter names address twice", rule=FILTER_RULE, hint="write address in (X'…', X'…')")
        listed = [said[1]] if said[1] else [_digits(each) for each in said[2].split(",")]
        if len(listed) > _MAX_ADDRESSES:
            raise Invalid(f"the filter names more than {_MAX_ADDRESSES:,} addresses", rule=FILTER_RULE)
        return found._replace(addresses=tuple(_value(each, _ADDRESS_DIGITS, term) for each in listed))
    if said := _TOPIC.match(term):
        value = selector(parse_event(said[3])) if said[2] is None else _value(said[2], _TOPIC_DIGITS, term)
        return with_topic(found, value, int(said[1]))
    raise Invalid(
        f"a node cannot be asked for {term[:200]!r}",
        rule=FILTER_RULE,
        hint="conditions joined by and: address = X'…', address in (X'…', …), topic0 = X'…', "
        "topic0 = eth_event_selector('…'), block_number > N; others belong to preprocess",
    )


def _digits(text: str) -> str:
    found = re.fullmatch(_HEX, text.strip())
    return "" if found is None else found[1]


def _value(digits: str, length: int, term: str) -> str:
    if len(digits) != length:
        raise Invalid(
            f"{term[:200]!r} needs {length} hexadecimal digits: X'…'", rule=FILTER_RULE, hint="odfctl docs sources"
        )
    return "0x" + digits.lower()


T = TypeVar("T")
MAX_ANSWER: Final = 64 << 20
"""Bytes of one answer."""
BATCH: Final = 50
"""Blocks that are requested at once."""
_JSON: Final = {"Content-Type": "application/json", "Accept": "application/json"}


_NOTHING: Final = msgspec.Raw(b"null")


class _Error(msgspec.Struct, frozen=True):
    code: int = 0


class _Answer(msgspec.Struct, frozen=True):
    id: int
    result: msgspec.Raw = _NOTHING
    error: _Error | None = None


class RpcRefused(Exception):
    """The node answers a request with an error. ``code``: its number; the text may quote secrets that were sent."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class EvmNode:
    """Sends requests to one node. ``url`` has its secrets filled in."""

    def __init__(self, url: FilledTemplate, job: FetchJob) -> None:
        self._shown = str(url)
        self._job = job
        self._address, headers = address_of(url)
        self._headers = _JSON | {name: value.reveal() for name, value in headers.items()}
        self._confidential = frozenset(headers)

    async def call(self, method: str, parameters: Sequence[object], kind: type[T]) -> T:
        """Sends one request. Raises RpcRefused, Remote."""
        (found,) = await self.calls([(method, parameters)], kind)
        return found

    async def calls(self, questions: Sequence[tuple[str, Sequence[object]]], kind: type[T]) -> list[T]:
        """Sends several requests at once. Returns the answers in their order. Raises RpcRefused, Remote."""
        body: Any = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}
            for number, (method, parameters) in enumerate(questions)
        ]
        raw = await self._send(msgspec.json.encode(body if len(body) > 1 else body[0]))
        return await trio.to_thread.run_sync(self._results, raw, len(questions), kind)

    async def blocks(self, numbers: Sequence[int]) -> dict[int, EvmBlock]:
        """Requests blocks by their numbers. Raises RpcRefused, and Remote if one does not exist."""
        found: dict[int, EvmBlock] = {}
        for start in range(0, len(numbers), BATCH):
            part = numbers[start : start + BATCH]
            got = await self.calls([("eth_getBlockByNumber", (hex(each), False)) for each in part], EvmBlock | None)  # type: ignore[arg-type]
            for number, each in zip(part, got, strict=True):
                if each is None or int(each.number, 16) != number:
                    raise self._odd(f"block {number} is not there")
                found[number] = each
        return found

    async def _send(self, body: bytes) -> bytes:
        limits = msgspec.structs.replace(
            self._job.settings, max_source_bytes=min(MAX_ANSWER, self._job.settings.max_source_bytes)
        )
        job, path = msgspec.structs.replace(self._job, settings=limits), self._job.folder / "answer"
        async with page(self._address, self._shown, self._headers, self._confidential, limits, body) as found:
            if found.status in (401, 403, 404, 429) or found.status >= 500:
                raise Remote(
                    f"{self._shown} answers {found.status} {found.reason}", rule=RULE, hint=remedy(found.status)
                )
            await save(found, path, FilledTemplate(self._shown, self._shown), job)
        return await trio.to_thread.run_sync(path.read_bytes)

    def _results(self, raw: bytes, count: int, kind: type[T]) -> list[T]:
        try:
            said = msgspec.json.decode(raw, type=list[_Answer] | _Answer)
            answers = {each.id: each for each in (said if isinstance(said, list) else [said])}
            if errors := [answer.error for answer in answers.values() if answer.error is not None]:
                raise RpcRefused(errors[0].code)
            return [msgspec.json.decode(answers[number].result, type=kind) for number in range(count)]
        except (msgspec.DecodeError, RecursionError, KeyError):
            raise self._odd("an answer is not to the request") from None

    def _odd(self, why: str) -> Remote:
        return Remote(
            f"{self._shown}: {why}", rule=RULE, hint="check that it is a node of this chain, and has all blocks"
        )


STRIDE: Final = 100_000
"""Blocks of one request; halved while the node refuses it or its answer is too large."""
MOST_BLOCKS: Final = 1_000_000
"""Blocks of one transaction."""
MOST_LOGS: Final = 100_000
"""Logs after which a transaction sends no further request."""
MOST_DATA: Final = 64 << 20
"""Characters of log data after which a transaction sends no further request."""
QUIET_BLOCKS: Final = 10_000
"""Blocks without logs for which a position is committed; after fewer the next pull reads them again."""


class EthereumSource(Source[FetchEthereumLogs, None]):
    """Logs of a chain of blocks."""

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches the next logs. Raises Remote, Refused, Invalid, Environment."""
        self.check(job.settings)
        url = fill(self.step.node_url or "", job.settings.variables)
        wanted, known = _filter(self.step), job.value_of(ETAG)
        last = None if known is None else decode_position(known)
        try:
            with trio.fail_after(job.settings.patience.total):
                return await _Scan(self.step, EvmNode(url, job), wanted, last, job).run()
        except trio.TooSlowError as error:
            raise Remote(f"{url}: no logs came in time", rule=RULE, hint="ingest.fetch-seconds") from error
        except RpcRefused as error:
            raise Remote(
                f"{url}: the node refuses with {error.code}",
                rule=RULE,
                hint="check that the node has the requested data",
            ) from None

    def check(self, settings: IngestSettings) -> None:
        """Checks a step before a fetch. Raises Invalid, Refused if a library is not installed."""
        if self.step.node_url is None:
            raise Refused(
                f"nothing says which node of chain {self.step.chain_id} to ask",
                rule="evm-node",
                hint="write nodeUrl: https://HOST/PATH, or ${{ env.NAME }} with a SecretSet",
            )
        if not self.step.node_url.startswith(("http://", "https://")) and not TEMPLATE.match(self.step.node_url):
            raise Invalid(
                f"a node is asked by HTTP: {self.step.node_url}",
                rule="url-scheme",
                hint="write nodeUrl: https://HOST/PATH",
            )
        check_url_password(self.step.node_url)
        settings.check_variables(self.step.node_url)
        if not TEMPLATE.match(self.step.node_url):
            address_of(FilledTemplate(self.step.node_url, TEMPLATE.sub("1", self.step.node_url)))
        if self.step.signature is not None or "eth_event_selector" in (self.step.filter or "").lower():
            check_client("eth_abi", "sources of kind EthereumLogs with a signature need", "evm")
        _filter(self.step)

    def check_read(self, read: ReadStep) -> None:
        check_rows(read, "EthereumLogs")


class _Scan:
    """Performs one fetch."""

    def __init__(
        self, step: FetchEthereumLogs, node: EvmNode, wanted: LogFilter, last: BlockPosition | None, job: FetchJob
    ) -> None:
        self._step, self._node, self._wanted, self._last, self._job = step, node, wanted, last, job

    async def run(self) -> FetchOutcome:
        await self._check_chain()
        final = await self._node.call("eth_getBlockByNumber", ("finalized", False), EvmBlock)
        end = min(int(final.number, 16), self._wanted.last)
        begin = self._wanted.first if self._last is None else max(self._wanted.first, self._last.number + 1)
        if begin > end:
            return Unchanged()
        logs, reached = await self._logs(begin, end)
        if not logs and reached == end and end - begin < QUIET_BLOCKS:
            return Unchanged()
        blocks = await self._node.blocks(sorted({int(log.block_number, 16) for log in logs} | {reached}))
        if any(blocks[int(log.block_number, 16)].hash != log.block_hash for log in logs):
            raise Remote("the node changed its blocks while they were read", rule="source-changed", hint="pull again")
        rows = [LogRow(log=log, time=int(blocks[int(log.block_number, 16)].timestamp, 16)) for log in logs]
        return await self._outcome(rows, BlockPosition(reached, blocks[reached].hash.lower()), has_more=reached < end)

    async def _check_chain(self) -> None:
        said = int(await self._node.call("eth_chainId", (), Quantity), 16)
        if self._step.chain_id is not None and said != self._step.chain_id:
            raise Refused(
                f"{self._step.node_url} is a node of chain {said}, and the source reads {self._step.chain_id}",
                rule="evm-chain",
                hint="name a node of that chain",
            )
        if self._last is None:
            return
        now = await self._node.call("eth_getBlockByNumber", (hex(self._last.number), False), EvmBlock | None)  # type: ignore[arg-type]
        if now is None:
            raise Remote(f"the node does not have block {self._last.number} yet, whose logs were taken", rule=RULE)
        if now.hash.lower() != self._last.hash:
            raise Refused(
                f"block {self._last.number} is {now.hash.lower()} there, and was {self._last.hash} when it was taken",
                rule=POSITION_RULE,
                hint="the node has another history: ask another one, or begin again: `odfctl reset` takes back rows",
            )

    async def _logs(self, begin: int, end: int) -> tuple[list[EvmLog], int]:
        """Returns the logs from block ``begin`` on, and the number of the last block that was read."""
        found: list[EvmLog] = []
        stride, start, size = STRIDE, begin, 0
        while start <= end and start - begin < MOST_BLOCKS and len(found) < MOST_LOGS and size < MOST_DATA:
            stop = min(start + stride - 1, end)
            try:
                part = await self._node.call("eth_getLogs", (self._wanted.parameter_for(start, stop),), list[EvmLog])
            except (RpcRefused, Refused) as error:
                too_large = isinstance(error, Refused) and error.rule == "max-source-bytes"
                if stride == 1 or not (too_large or isinstance(error, RpcRefused)):
                    raise
                stride = max(1, min(stride, stop - start + 1) // 2)
                continue
            found += self._check_logs(part, start, stop)
            size += sum(len(each.data) for each in part)
            start = stop + 1
        return found, start - 1

    def _check_logs(self, part: list[EvmLog], start: int, stop: int) -> list[EvmLog]:
        """Returns logs in their order. Raises Remote for logs that were not requested, or that occur twice."""
        places = [(int(each.block_number, 16), int(each.log_index, 16)) for each in part]
        fit = all(
            not each.removed and self._wanted.fits(each.address.lower(), tuple(topic.lower() for topic in each.topics))
            for each in part
        )
        if not fit or len(set(places)) < len(places) or any(not start <= number <= stop for number, _ in places):
            raise Remote("the node gives logs that were not asked for", rule=RULE, hint="ask another node")
        return [each for _, each in sorted(zip(places, part, strict=True), key=lambda pair: pair[0])]

    async def _outcome(self, rows: list[LogRow], reached: BlockPosition, *, has_more: bool) -> Fetched:
        job, source = self._job, self._job.folder / "logs.json"
        await trio.to_thread.run_sync(lambda: source.write_bytes(msgspec.json.encode(rows)))
        target = job.folder / "logs.parquet"
        request = DecodeJob(
            rows=str(source),
            signature=self._step.signature,
            target=str(target),
            limit=job.settings.max_source_bytes,
        )
        time = TimeLimit(job.settings.patience.total, "narrow the filter")
        done = await ask(main.__module__, request, DecodeResult, str(self._step.node_url), time)
        return Fetched(
            path=target,
            name="its logs",
            identity=f"sha3-256:{done.digest}@{reached.encode()}",
            event_time=job.now,
            state=SourceState(source_name=DEFAULT_SOURCE, kind=ETAG, value=reached.encode()),
            has_more=has_more,
        )


def _filter(step: FetchEthereumLogs) -> LogFilter:
    found = parse_filter(step.filter)
    return found if step.signature is None else with_topic(found, selector(parse_event(step.signature)))
