"""Runs queries on an engine of transforms (``ExecuteRawQuery``), after a query process has checked and prepared them.

The query process finds the tables of the statement, refuses forbidden statements, and writes those views that are more
than whole slices: folds of a log, cuts by event time, changed schemas. The engine reads all other slices itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from chain.data.parquet import open_slice
from chain.errors import Invalid, Refused
from chain.model.source import TransformSql
from engines.contract import EngineInternalError, InvalidQuery, RawQueryRequest, RawQueryView
from engines.errors import engine_failed
from engines.provision.warm import EnginePool
from engines.query.reader import QueryProcess
from engines.query.requests import TableNamed
from engines.query.views import SliceView
from odfd.control import wire
from odfd.queries.folds import copy_hashed
from odfd.queries.inputs import QueryInputs
from odfd.queries.planning import PlannedView, QueryPlan

_RULE: Final = "query-engine"
STATEMENT: Final = "SELECT * FROM answer"
"""Reads the rows that an engine computed."""


def answers_without(engine: str, what: str) -> Refused:
    """Makes the fault of a request that only a query process can answer."""
    return Refused(f"{engine} answers without {what}", rule=_RULE, hint="leave --engine out")


class EngineQueries:
    """Runs queries on an engine of transforms; ``most``: bytes of a view, and of an answer."""

    def __init__(
        self, engines: EnginePool, warm: Callable[[], None], inputs: QueryInputs, folder: Path, most: int
    ) -> None:
        """``warm`` starts what queries need of an engine, in the background."""
        self._engines, self._warm, self._inputs, self.folder, self._most = engines, warm, inputs, folder, most

    def check(self, request: wire.QueryRequest) -> None:
        """Raises Invalid for an engine that is not here, Refused for a request that only a query process can answer."""
        self._engines.engine(request.engine)
        asked = {"a proof": request.prove, "a plan": request.explain, "parameters": bool(request.parameters)}
        if refused := [name for name, is_asked in asked.items() if is_asked]:
            raise answers_without(request.engine, refused[0])
        self._warm()  # while a query process prepares the query

    async def prepare(
        self, process: QueryProcess, plan: QueryPlan, views: Sequence[SliceView], place: Path
    ) -> tuple[str, tuple[RawQueryView, ...]]:
        """Returns the statement for the engine, and its views, once the query process has written them."""
        made = [process.reserve(f"view-{number}") for number in range(len(views))]
        names = [seen if _is_made(planned) else "" for planned, (_, seen) in zip(plan.views, made, strict=True)]
        saved = await process.save(views, tuple(plan.places), tuple(names), self._most)
        found = []
        for planned, (path, _), name in zip(plan.views, made, names, strict=True):
            if name:
                target = place / path.name
                await trio.to_thread.run_sync(copy_hashed, path, target, self._most)
            paths = (str(target),) if name else self._inputs.paths(planned)
            found.append(RawQueryView(name=planned.view.name, data_paths=paths))
        return saved.statement, tuple(found)

    async def compute(
        self,
        engine: str,
        asked: tuple[str, tuple[RawQueryView, ...]],
        tables: Sequence[tuple[str, TableNamed]],
        place: Path,
    ) -> SliceView:
        """Runs the query; returns its rows as a view over the file ``place / "answer"``. Raises Invalid, EngineLost,
        LimitExceeded.
        """
        statement, views = asked
        path = place / "answer"
        outcome = await self._engines.engine(engine).raw_query(
            RawQueryRequest(
                input_data_paths=(), transform=TransformSql(engine=engine, query=statement),
                output_data_path=str(path), views=views,
            )
        )  # fmt: skip
        if isinstance(outcome, EngineInternalError):
            raise engine_failed(outcome.message)
        if isinstance(outcome, InvalidQuery):
            message = outcome.message
            for view, table in tables:
                message = message.replace(view, ".".join(table.path))
            raise Invalid(f"{engine}: {message}", rule=outcome.rule or _RULE, hint=outcome.hint or "")
        schema = await trio.to_thread.run_sync(_schema, path)
        return SliceView(name="odfd 0", files=(), schema=schema)


def _is_made(planned: PlannedView) -> bool:
    return planned.view.is_computed or not planned.slices


def _schema(path: Path) -> bytes:
    with open_slice(path) as found:
        schema: bytes = found.schema.serialize().to_pybytes()
    return schema
