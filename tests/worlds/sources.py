"""Fetching and preparing, for tests without an event loop of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from odfd.ingest import prep
from odfd.ingest.fetch import dispatch
from odfd.ingest.fetch.base import FetchJob


def fetch(step: Any, job: FetchJob) -> Any:
    return trio.run(dispatch.fetch, step, job)


def prepare(*args: Any) -> Path:
    return trio.run(prep.prepare, *args)
