"""Runs a daemon that times the parts of a pull, each without those inside it: ``python -m bench.probes FILE run …``.

Functions are replaced where their callers look them up, so that the product has no code for this. Each call appends a
line to FILE: the part, and its nanoseconds. A part is what ``PARTS`` says; a function that is gone fails the start.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, TextIO

WHOLE: Final = "the daemon's pull"
"""Encloses all other parts."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        WHOLE: ("odfd.services.ingest.ingest_pull:IngestPullService._pull_one",),
        "plan": (
            "odfd.ingest.driver:_plan",
            "odfd.transform.driver:plan_next",
            "odfd.transform.execute:transform_request",
        ),
        "fetch": ("odfd.ingest.driver:fetch_next", "odfd.ingest.driver:left_alone"),
        "preparation": ("odfd.ingest.driver:prepare_batch",),
        "links": ("engines.staging:Staging.lay", "engines.staging:Staging.collect", "engines.staging:Staging.clear"),
        "engine": ("engines.client:GrpcEngine._drain",),
        "hashes": ("odfd.ingest.driver:_settle_rows", "odfd.transform.execute:_weigh"),
        "objects": ("chain.store.objects:DiskObjects.add_file",),
        "draft": ("odfd.trust.signing.owner_commit:OwnerCommitter._draft",),
        "database": ("chain.store.sqlite:SqliteChains.commit",),
        "signature": ("odfd.store.keys.keystore:KeyStore.sign",),
        "announcement": ("odfd.trust.signing.owner_commit:OwnerCommitter._sign",),
    }
)
"""Functions of each part."""
_INSIDE: Final[ContextVar[list[int] | None]] = ContextVar("inside", default=None)
"""Nanoseconds of parts inside the present one, also in threads and tasks that it starts."""


def main() -> int:
    """Runs ``odfd`` with the arguments behind the file's name."""
    file, *words = sys.argv[1:]
    with open(file, "a", buffering=1, encoding="utf-8") as out:  # noqa: PTH123 - lines, written at once
        for part, functions in PARTS.items():
            for name in functions:
                _replace(name, functools.partial(_timed, part, out))
        from odfd.daemon.main import main as run

        sys.argv = ["odfd", *words]
        return run()


def _replace(name: str, timed: Callable[[Any], Any]) -> None:
    module, _, path = name.partition(":")
    *above, last = path.split(".")
    owner = functools.reduce(getattr, above, importlib.import_module(module))
    setattr(owner, last, timed(getattr(owner, last)))


def _timed(part: str, out: TextIO, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*given: Any, **named: Any) -> Any:
            with _Timer(part, out):
                return await function(*given, **named)

        return call_async

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        with _Timer(part, out):
            return function(*given, **named)

    return call


class _Timer:
    def __init__(self, part: str, out: TextIO) -> None:
        self._part, self._out = part, out

    def __enter__(self) -> None:
        self._outside = _INSIDE.get()
        self._inside = [0]
        self._token = _INSIDE.set(self._inside)
        self._start = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        took = time.perf_counter_ns() - self._start
        _INSIDE.reset(self._token)
        if self._outside is not None:
            self._outside[0] += took
        self._out.write(f"{self._part}\t{took - self._inside[0]}\n")


if __name__ == "__main__":
    sys.exit(main())
