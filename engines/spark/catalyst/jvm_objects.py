"""Looks up classes and constants of the JVM by their names, once for each JVM.

Every step of a dotted name is a round trip, so that a class costs as many as the call of it costs several times over.
What is kept holds nothing of a session or a query, and goes with the gateway that it was looked up through.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

_KNOWN: Final[WeakKeyDictionary[Any, dict[str, Any]]] = WeakKeyDictionary()


def jvm_object(session: SparkSession, name: str, make: Callable[[Any], Any] = lambda found: found) -> Any:
    """What ``name`` stands for, a class or a static member of one; or what ``make`` makes of that, if it is a constant.

    One ``make`` for each name.
    """
    known = _KNOWN.setdefault(session.sparkContext._gateway, {})
    if name not in known:
        known[name] = make(reduce(getattr, name.split("."), session._jvm))
    return known[name]
