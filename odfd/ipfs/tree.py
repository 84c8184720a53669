"""Defines where published datasets lie in Kubo's file system (MFS). ADR 0009."""

from __future__ import annotations

from typing import Final

from chain.ids import DatasetId

HOME: Final = "/odfd"


def folder_of(dataset: DatasetId) -> str:
    return f"{HOME}/{dataset.multibase}"
