"""Fetching and preparing, for tests without an event loop of their own."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from chain.codec.manifest import parse_manifests
from chain.model.events import SetPollingSource
from odfd.datasets.creation import with_columns
from odfd.ingest import preparation
from odfd.ingest.fetch import dispatch
from odfd.ingest.fetch.fetch_process import without_fault
from odfd.ingest.fetch.source import FetchJob


def fetch(step: Any, job: FetchJob) -> Any:
    return trio.run(dispatch.fetch, step, job)


def prepare(path: Path, *args: Any, name: str | None = None, decoded: bool = False) -> Path:
    return prepared(path, *args, name=name, decoded=decoded).path


def prepared(path: Path, *args: Any, name: str | None = None, decoded: bool = False) -> preparation.Prepared:
    return trio.run(partial(preparation.prepare, path, *args, name=name or path.name, decoded=decoded))


def asked_here(answer: Callable[[Any], Any]) -> Callable[..., Awaitable[Any]]:
    """What stands for ``ask`` of a source: this process answers, where another would have to start."""

    async def ask(_main: object, job: Any, _kind: object, shown: str, _time: object) -> Any:
        return without_fault(await trio.to_thread.run_sync(answer, job), shown)

    return ask


def examples(kind: str) -> list[str]:
    """The manifests of docs/reference/sources.md whose fetch step is of ``kind``, as they are written there."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sources.md").read_text()
    return [each for each in re.findall(r"```yaml\n(fetch:\n.*?)```", page, re.DOTALL) if f"kind: {kind}\n" in each]


def source(text: str) -> SetPollingSource:
    """The event of an example, as a chain holds it."""
    lines = "\n".join(f"  {line}" for line in text.splitlines())
    whole = f"kind: MetadataEvent\nversion: 1\ncontent:\n  kind: SetPollingSource\n{lines}\n  merge: {{kind: Append}}\n"
    (manifest,) = parse_manifests(whole, "example.yaml")
    event = with_columns(manifest.content)  # type: ignore[arg-type]
    assert isinstance(event, SetPollingSource)
    return event
