"""Names of the JVM, each looked up once.

py4j asks the JVM for each step of a dotted name, again each time, and for what is a package the JVM looks through all
of Spark's jars for a class of that name: a seventh of what a small transaction takes of a core. Here packages and
classes are remembered. What a class has is asked as before.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from pyspark import SparkContext
from pyspark.sql import SparkSession

_NAME: Final = "jvm"


class RememberedNames(JVMView):  # type: ignore[misc]
    """Stands for the view of a JVM that a gateway has, and goes with it."""

    def __init__(self, view: Any) -> None:
        super().__init__(view._gateway_client, _NAME, id=view._id)

    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


def _remembered(place: Any, name: str, found: Any) -> Any:
    if isinstance(found, JavaPackage):
        found = _Package(found._fqn, found._gateway_client, found._jvm_id)
    if isinstance(found, JavaPackage | JavaClass):
        vars(place)[name] = found
    return found


def remember_names(spark: SparkSession) -> None:
    """For this session and those derived from it."""
    spark._jvm = SparkContext._jvm = RememberedNames(spark._jvm)
