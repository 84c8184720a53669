"""Answers queries: plans which slices are read, holds them, and passes on the rows that a confined process computes."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import trio

from chain.errors import Invalid
from chain.ids import DatasetId
from engines.errors import LimitExceeded
from engines.query.frames import COLUMNS, END, HEAD, LINES, PLAIN, ROWS, SCHEMA, frame, split_frame
from engines.query.reader import QueryProcess, QueryProcesses
from engines.query.requests import ALL_ROWS, Execute, RowSelection, TableNamed, TablesNamed
from odfd.control import wire
from odfd.control.operations import Owner, Permission, operation
from odfd.queries.askers import OWNER, Asker, Bound, bound_name
from odfd.queries.doors import GiveFiles, SendFrame
from odfd.queries.folds import copy_hashed
from odfd.queries.inputs import QueryInputs
from odfd.queries.log_files import LogFiles, files_of_log
from odfd.queries.planning import Planner, QueryPlan
from odfd.services.queries.answer_proofs import AnswerProof, Signer
from odfd.services.queries.engine_queries import STATEMENT, EngineQueries, answers_without
from odfd.services.queries.fair_turns import LAST_FRAME, FairTurns
from odfd.services.queries.fold_cache import FoldCache

MAX_SQL: Final = 1 << 20
"""Characters of a statement."""
_PASSED: Final = (SCHEMA, ROWS, COLUMNS, PLAIN, LINES, END)
_TOGETHER: Final = 128
"""Descriptors of one message; the kernel takes 253."""


class QueryService:
    """The API service for SQL over datasets."""

    def __init__(
        self,
        planner: Planner,
        processes: QueryProcesses,
        inputs: QueryInputs,
        signer: Signer,
        folding: FoldCache | None = None,
        engines: EngineQueries | None = None,
    ) -> None:
        """``folding`` stores folds, and ``engines`` runs queries on engines of transforms, if there are any."""
        self._planner, self._processes, self._inputs, self._signer = planner, processes, inputs, signer
        self._folding, self._engines = folding, engines
        self.turns = FairTurns(processes.limits.most)

    @operation(needs=Permission.BY_RULE)
    async def answer(
        self,
        request: wire.QueryRequest,
        send: SendFrame,
        asker: Asker = OWNER,
        rows: RowSelection = ALL_ROWS,
        piped: GiveFiles | None = None,
    ) -> None:
        """Sends the frames of an answer (``engines.query.frames``): what is read, rows as they are computed, the end.

        ``piped`` takes the first frame instead, with a pipe from which rows are read as one Arrow stream.
        Raises Invalid for what is no query, NotFound for a dataset that is not here, Refused for what is not relied on
        or needs too much, and if too many queries wait (``query-busy``), LimitExceeded if others wait and the query had
        its time (``query-share``), Environment for a slice that is damaged. Cancelled, it leaves nothing behind.
        """
        if len(request.sql) > MAX_SQL:
            raise Invalid(
                f"the query has {len(request.sql):,} characters", rule="query-size", hint=f"at most {MAX_SQL:,}"
            )
        # The proof is a hash over Arrow frames; text of a value is not unique.
        if request.prove and (request.plain or request.lines):
            raise Invalid("a proven answer is sent as Arrow", rule="query-prove", hint="leave plain and lines out")
        async with self.turns.one(asker.caller) as sending:

            async def send_whole(data: bytes | memoryview) -> None:
                with sending():
                    await send(data)

            if request.engine:
                return await self._by_engine((request, asker, rows), send_whole)
            async with self._processes.one() as process:
                return await self._answer(process, (request, asker, rows), (send_whole, piped))

    @property
    def _end(self) -> float:
        """The time at which a query that begins now ends."""
        return trio.current_time() + self._processes.limits.seconds

    @contextmanager
    def _until(self, end: float) -> Iterator[None]:
        """Raises LimitExceeded at the time ``end``."""
        with trio.move_on_at(end) as limit:
            yield
        if limit.cancelled_caught:
            raise LimitExceeded(
                f"the query took more than {self._processes.limits.seconds:g} s",
                rule="query-deadline",
                hint="query.seconds sets the limit",
            )

    async def _answer(
        self,
        process: QueryProcess,
        asked: tuple[wire.QueryRequest, Asker, RowSelection],
        sends: tuple[SendFrame, GiveFiles | None],
    ) -> None:
        request, _, rows = asked
        end = self._end
        with self._until(end):
            named, plan = await self._prepare(process, asked)
        with self._inputs.hold(plan.views), _begin(process, *sends) as (pipe, begin):
            with self._until(end):
                views = await self._inputs.show(plan.views, process)
            wanted = Execute(
                views=views,
                places=tuple(plan.places),
                parameters=request.parameters,
                explain=request.explain,
                rows=msgspec.structs.replace(
                    rows, plain=request.plain, lines=request.lines, prove=request.prove or rows.prove
                ),
                pipe=pipe,
            )
            head = msgspec.structs.replace(plan.head, parameters=named.parameters)
            with AnswerProof(self._signer) if request.prove else nullcontext() as proof:
                signing = _signing(proof, request.sql, head)
                async with self._inputs.told_apart(plan.views):
                    await self._pass_on(process.execute(wanted), head, (begin, sends[0]), signing, end)
        if self._folding is not None and not request.explain:
            self._folding.after(plan)

    async def keep(
        self, request: wire.QueryRequest, asker: Asker, target: Path, most: int
    ) -> tuple[QueryPlan, int, str]:
        """Writes an answer to the new file ``target``, as Parquet. Returns what was read, rows, and the SHA-256.

        ``most``: bytes of the file. Raises as ``answer`` does, and Refused for a larger answer.
        """
        async with self.turns.one(asker.caller), self._processes.one() as process:
            with self._until(self._end):
                _, plan = await self._prepare(process, (request, asker, ALL_ROWS))
                with self._inputs.hold(plan.views):
                    views = await self._inputs.show(plan.views, process)
                    path, seen = process.reserve("answer")
                    async with self._inputs.told_apart(plan.views):
                        rows = (await process.save_answer(views, plan.places, seen, most)).rows
                    content = await trio.to_thread.run_sync(copy_hashed, path, target, most)
                    return plan, rows, content

    @operation(needs=Owner.FILES)
    async def slices(self, request: wire.SlicesRequest, give: GiveFiles) -> None:
        """Gives descriptors of the files that make up a log at a cut, or of those with some of its rows, without a
        statement or a query process.

        An opened file stays readable, whatever is collected. Raises as ``answer`` does, NotFound for a position that is
        no longer in the chain, and Refused for a log that its slices do not hold as it is read.
        """
        with ExitStack() as held:
            chosen, paths = await trio.to_thread.run_sync(self._choose, request, held)
            parts = [paths[start : start + _TOGETHER] for start in range(0, len(paths), _TOGETHER)]
            said = frame(HEAD, msgspec.json.encode(chosen.head)) + frame(SCHEMA, chosen.view.view.schema)
            for number, some in enumerate(parts or [[]], 1):
                with ExitStack() as opened:
                    files = [os.open(each, os.O_RDONLY | os.O_CLOEXEC) for each in some]
                    for file in files:
                        opened.callback(os.close, file)
                    said += frame(ROWS, str(len(files)).encode()) if files else b""
                    await give(said if number < len(parts) else said + _end(chosen), files)
                    said = b""

    def _choose(self, request: wire.SlicesRequest, held: ExitStack) -> tuple[LogFiles, list[Path]]:
        """Returns the files of a log, protected until ``held`` ends, and the paths of those that are given, hashed."""
        chosen = files_of_log(self._planner.home, self._planner.plan, request)
        views = (chosen.view,)
        held.enter_context(self._inputs.hold(views))
        if request.listed or not chosen.view.slices:
            return chosen, []
        sound = self._inputs.sound(views, again=request.again)
        return chosen, [sound[str(slice_.slice.physical_hash)] for slice_ in chosen.view.slices]

    async def _by_engine(self, asked: tuple[wire.QueryRequest, Asker, RowSelection], send: SendFrame) -> None:
        """Runs the query on an engine of transforms; a query process prepares it before and reads its rows after."""
        request, _, rows = asked
        if self._engines is None:
            raise Invalid(f"no engine called {request.engine!r} here", rule="query-engine", hint="leave --engine out")
        self._engines.check(request)
        end = self._end
        with ExitStack() as kept:
            place = Path(kept.enter_context(TemporaryDirectory(dir=self._engines.folder)))
            async with self._processes.one() as process:
                named, plan = await self._prepare(process, asked)
                if named.parameters:
                    raise answers_without(request.engine, "parameters")
                kept.enter_context(self._inputs.hold(plan.views))
                views = await self._inputs.show(plan.views, process)
                ready = await self._engines.prepare(process, plan, views, place)
            tables = [(views[at].name, table) for at, table in zip(plan.places, named.tables, strict=True)]
            with self._until(end):
                view = await self._engines.compute(request.engine, ready, tables, place)
            async with self._processes.one() as process:
                # What an engine wrote is as untrusted as the statement: it is read in a confined process too.
                await process.prepare(STATEMENT)
                process.link({"answer": place / "answer"})
                view = msgspec.structs.replace(view, files=(process.path_inside("answer"),))
                wanted = Execute(
                    views=(view,),
                    places=(0,),
                    rows=msgspec.structs.replace(rows, plain=request.plain, lines=request.lines),
                )
                signing = _signing(None, request.sql, plan.head)
                await self._pass_on(process.execute(wanted), plan.head, (send, send), signing, end)

    async def _prepare(
        self, process: QueryProcess, asked: tuple[wire.QueryRequest, Asker, RowSelection]
    ) -> tuple[TablesNamed, QueryPlan]:
        request, asker, _ = asked
        if request.by_pins:
            asker = _by_pins(request.pins, asker)
        named = await process.prepare(request.sql)
        return named, await trio.to_thread.run_sync(self._plan, named.tables, request, asker)

    def _plan(self, tables: Sequence[TableNamed], request: wire.QueryRequest, asker: Asker) -> QueryPlan:
        plan = self._planner.plan(tables, request, asker)
        return plan if self._folding is None else self._folding.shorten(plan)

    async def _pass_on(
        self,
        frames: AsyncGenerator[tuple[bytes, memoryview], None],
        said: wire.QueryHead,
        sends: tuple[SendFrame, SendFrame],
        signing: Callable[[bytes, memoryview], Awaitable[bytes | memoryview]],
        end: float,
    ) -> None:
        """Sends the first frame together with the first rows: a fault before them becomes the whole answer.

        ``sends``: functions that send the first frame, and the others. The time ``end`` ends the wait for a frame. A
        frame that is being sent is sent whole, or the client could not read the fault behind it; a client that does not
        read has LAST_FRAME seconds for it.
        """
        begin, send = sends
        head: bytes | None = frame(HEAD, msgspec.json.encode(said))
        async with aclosing(frames) as each:
            while True:
                with self._until(end):
                    kind, whole = await anext(each)
                if kind not in _PASSED:
                    continue
                with self._until(end + LAST_FRAME):
                    if head is not None:
                        await begin(head)
                        head = None
                    await send(await signing(kind, whole))
                if kind == END:
                    return


def _end(chosen: LogFiles) -> bytes:
    """Returns the last frame of an answer of files: the number of rows, and the offsets of each file."""
    spans = tuple(
        (slice_.slice.offset_interval.start, slice_.slice.offset_interval.end) for slice_ in chosen.view.slices
    )
    rows = sum(end - start + 1 for start, end in spans)
    end = wire.SlicesEnd(rows=rows, offsets=spans, more=chosen.more, ended=chosen.ended)
    return frame(END, msgspec.json.encode(end))


@contextmanager
def _begin(process: QueryProcess, send: SendFrame, piped: GiveFiles | None) -> Iterator[tuple[str, SendFrame]]:
    """Yields the query process's path of the row pipe (empty without one), and the function for the first frame."""
    if piped is None:
        yield "", send
        return
    number, pipe = process.pipe()
    with os.fdopen(number, "rb", buffering=0) as end:

        async def begin(head: bytes | memoryview) -> None:
            with end:  # whoever reads holds it from here on alone: rows end when nobody does
                await piped(bytes(head), [end.fileno()])

        yield pipe, begin


def _signing(
    proof: AnswerProof | None, sql: str, head: wire.QueryHead
) -> Callable[[bytes, memoryview], Awaitable[bytes | memoryview]]:
    """Returns the function that completes a frame before it is sent: the end of a proven answer gets the statement."""

    async def sent(kind: bytes, whole: memoryview) -> bytes | memoryview:
        if proof is None:
            return whole
        content = split_frame(whole)[1]
        if kind == ROWS:
            proof.take(content)
        if kind != END:
            return whole
        end = msgspec.json.decode(content, type=wire.QueryEnd)
        envelope = await trio.to_thread.run_sync(proof.sign, sql, head, end.rows)
        return frame(END, msgspec.json.encode(msgspec.structs.replace(end, proof=envelope)))

    return sent


def _by_pins(pins: Sequence[wire.Pin], asker: Asker) -> Asker:
    """Resolves names as the pins do; pins of one name and time are the shards of a collection, in order."""
    shards: dict[str, list[DatasetId]] = {}
    for pin in pins:
        shards.setdefault(bound_name(pin.name, pin.at), []).append(DatasetId.parse(pin.id))
    bound = {pin.id.lower(): Bound(DatasetId.parse(pin.id)) for pin in pins}
    for name, found in shards.items():
        each = tuple(dict.fromkeys(found))
        bound[name] = Bound(each[0], shards=each if len(each) > 1 else ())
    return msgspec.structs.replace(asker, bound=bound)
