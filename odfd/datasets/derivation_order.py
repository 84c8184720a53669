"""Orders datasets so that inputs come before the datasets that derive from them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from chain.ids import DatasetId


def inputs_first(
    asked: Iterable[DatasetId], inputs: Callable[[DatasetId], Sequence[DatasetId]], among: Container[DatasetId]
) -> list[DatasetId]:
    """Orders the requested datasets and those of their inputs that are in ``among``, so that inputs come first.

    Chains of other nodes may derive from each other in a ring; such a ring is cut where it closes.
    """
    ordered: dict[DatasetId, None] = {}
    begun: set[DatasetId] = set()
    for first in asked:
        path = [first]
        while path:
            last = path[-1]
            begun.add(last)
            following = next((each for each in inputs(last) if each in among and each not in begun), None)
            if following is not None:
                path.append(following)
            else:
                ordered[path.pop()] = None
    return list(ordered)
