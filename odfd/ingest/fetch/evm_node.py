"""Sends requests to a blockchain node by JSON-RPC over HTTP; each answer has a bounded size and a checked type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
import trio

from chain.errors import Remote
from odfd.ingest.evm.job import RULE, EvmBlock
from odfd.ingest.fetch.base import FetchJob
from odfd.ingest.fetch.page import page
from odfd.ingest.fetch.url import address_of, remedy, saved
from odfd.ingest.templates import FilledTemplate

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
        raw = await self._sent(msgspec.json.encode(body if len(body) > 1 else body[0]))
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

    async def _sent(self, body: bytes) -> bytes:
        limits = msgspec.structs.replace(
            self._job.settings, max_source_bytes=min(MAX_ANSWER, self._job.settings.max_source_bytes)
        )
        job, path = msgspec.structs.replace(self._job, settings=limits), self._job.folder / "answer"
        async with page(self._address, self._shown, self._headers, self._confidential, limits, body) as found:
            if found.status in (401, 403, 404, 429) or found.status >= 500:
                raise Remote(
                    f"{self._shown} answers {found.status} {found.reason}", rule=RULE, hint=remedy(found.status)
                )
            await saved(found, path, FilledTemplate(self._shown, self._shown), job)
        return await trio.to_thread.run_sync(path.read_bytes)

    def _results(self, raw: bytes, count: int, kind: type[T]) -> list[T]:
        try:
            said = msgspec.json.decode(raw, type=list[_Answer] | _Answer)
            answers = {each.id: each for each in (said if isinstance(said, list) else [said])}
            if errors := [each.error for each in answers.values() if each.error is not None]:
                raise RpcRefused(errors[0].code)
            return [msgspec.json.decode(answers[number].result, type=kind) for number in range(count)]
        except (msgspec.DecodeError, RecursionError, KeyError):
            raise self._odd("an answer is not what was asked for") from None

    def _odd(self, why: str) -> Remote:
        return Remote(f"{self._shown}: {why}", rule=RULE, hint="is it a node of the chain, and has it all blocks?")
