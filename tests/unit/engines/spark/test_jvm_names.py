"""Names of the JVM are looked up once, and only names: no JVM here, a client that answers as one does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from py4j.java_gateway import JavaClass, JVMView

from engines.spark.runtime.session import RememberedNames

PACKAGE, CLASS = "yp", "ycorg.Spark"


class Client:
    gateway_property, converters = SimpleNamespace(pool=None), None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def send_command(self, command: str, *_: Any) -> str:
        self.asked.append(command.split("\n")[2])
        return CLASS if self.asked[-1] in ("org.Spark", "Spark") else PACKAGE


def test_each_step_of_a_name_is_asked_once() -> None:
    client = Client()
    names = RememberedNames(JVMView(client, "jvm", id="o0"))
    for _ in range(3):
        assert isinstance(names.org.Spark, JavaClass)
        assert isinstance(names.Spark, JavaClass)
        assert isinstance(getattr(names, "org.Spark"), JavaClass)
    assert client.asked == ["org", "org.Spark", "Spark", "org.Spark"]


def test_another_jvm_is_asked_anew() -> None:
    clients = Client(), Client()
    for client in clients:
        assert RememberedNames(JVMView(client, "jvm", id="o0")).org.Spark
    assert [client.asked for client in clients] == [["org", "org.Spark"]] * 2
