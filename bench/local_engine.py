"""Runs the Spark engine in this process as coordinators see it, with no gRPC in between."""

from __future__ import annotations

from typing import Any

import trio
from pyspark.sql import SparkSession

from engines.contract import EngineIdentity, OnProgress, ignore_progress
from engines.request_control import RequestControl
from engines.spark.handler import SparkHandler


class LocalEngine:
    """An ``contract.Engine`` in this process."""

    def __init__(self, spark: SparkSession, digest: str = "sha256:" + "1" * 64) -> None:
        self._identity = EngineIdentity(
            name="spark", version="4", digest=digest, sandbox="none", platform="linux/amd64"
        )
        self._handler = SparkHandler(spark, lambda: self._identity)

    async def identity(self) -> EngineIdentity:
        return self._identity

    async def validate(self, request: Any) -> Any:
        return await trio.to_thread.run_sync(self._handler.validate, request)

    async def transform(self, request: Any, on_progress: OnProgress = ignore_progress) -> Any:
        return await trio.to_thread.run_sync(self._handler.transform, request, RequestControl())

    async def migrate(self, request: Any, on_progress: OnProgress = ignore_progress) -> Any:
        return await trio.to_thread.run_sync(self._handler.migrate, request, RequestControl())

    async def ingest(self, request: Any, on_progress: OnProgress = ignore_progress) -> Any:
        return await trio.to_thread.run_sync(self._handler.ingest, request, RequestControl())

    async def raw_query(self, request: Any, on_progress: OnProgress = ignore_progress) -> Any:
        return await trio.to_thread.run_sync(self._handler.raw_query, request, RequestControl())
