"""Fetching and preparing, for tests without an event loop of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio

from odfd.ingest import prep
from odfd.ingest.fetch import dispatch
from odfd.ingest.fetch.base import FetchJob


def fetch(step: Any, job: FetchJob) -> Any:
    return trio.run(dispatch.fetch, step, job)


def prepare(path: Path, *args: Any, name: str | None = None, decoded: bool = False) -> Path:
    return prepared(path, *args, name=name, decoded=decoded).path


def prepared(path: Path, *args: Any, name: str | None = None, decoded: bool = False) -> prep.Prepared:
    return trio.run(partial(prep.prepare, path, *args, name=name or path.name, decoded=decoded))
