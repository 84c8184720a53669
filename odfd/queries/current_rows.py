"""Decides how the log of a dataset folds to its current rows. Pure."""

from __future__ import annotations

from chain.model.events import AddPushSource, SetPollingSource
from chain.model.source import primary_key, traits
from chain.state import ChainState
from engines.query.views import Fold
from odfd.transform.inputs import is_changelog, only_appends


def fold_of(state: ChainState) -> tuple[Fold, tuple[str, ...]]:
    """Returns how the log of a chain folds to current rows, and by which key."""
    if is_changelog(state) is False:
        return "log", ()
    if state.set_transform is not None or only_appends(state):
        return "rows", ()
    sources: list[SetPollingSource | AddPushSource] = list(state.push_sources.values())
    if state.set_polling_source is not None:
        sources.append(state.set_polling_source)
    keys = {primary_key(source.merge) for source in sources}
    if len(keys) == 1 and all(not traits(source.merge).only_adds for source in sources):
        return "key", keys.pop()
    return "rows", ()
