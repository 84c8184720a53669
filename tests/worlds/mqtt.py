"""A real broker of MQTT on loopback: mosquitto, where it is installed (Debian: mosquitto)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from worlds.certificates import certified
from worlds.eventually import until
from worlds.ports import free_ports

PASSWORD = "p@ss/word:1"


class MqttBroker(NamedTuple):
    port: int
    signed: int
    """The same for a user ``reader`` with ``PASSWORD``."""
    secure: int
    """The same over TLS, with a certificate of ``authority`` for 127.0.0.1."""
    authority: Path

    def send(self, topic: str, *values: bytes, qos: int = 1, retain: bool = False) -> None:
        """Published, and acknowledged by the broker."""
        from paho.mqtt import publish

        messages: list[Any] = [(topic, value, qos, retain) for value in values]
        publish.multiple(messages, hostname="127.0.0.1", port=self.port)


@contextmanager
def mosquitto_served() -> Iterator[MqttBroker]:
    """Skips the test by name where it is not there."""
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("mosquitto is not installed")
    pytest.importorskip("paho")
    with tempfile.TemporaryDirectory(prefix="odfd-mqtt-") as name:
        yield from _running(program, Path(name))


def _running(program: str, folder: Path) -> Iterator[MqttBroker]:
    port, signed, secure = free_ports(3)
    certificate, key = certified(folder, "broker.example", addresses=[IPv4Address("127.0.0.1")])
    (folder / "conf").write_text(
        f"per_listener_settings true\nuser {_user()}\nmax_queued_messages 0\nlistener {port} 127.0.0.1\n"
        f"allow_anonymous true\nlistener {signed} 127.0.0.1\nallow_anonymous false\npassword_file {folder}/words\n"
        f"listener {secure} 127.0.0.1\nallow_anonymous false\npassword_file {folder}/words\n"
        f"certfile {certificate}\nkeyfile {key}\n"
    )
    subprocess.run(["mosquitto_passwd", "-b", "-c", folder / "words", "reader", PASSWORD], check=True)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, "-c", folder / "conf"], stdout=log, stderr=log)
    try:
        until(lambda: all(map(_answers, (port, signed, secure))))
        yield MqttBroker(port, signed, secure, certificate)
    finally:
        process.terminate()
        process.wait()


def _user() -> str:
    return "root" if os.getuid() == 0 else "mosquitto"


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0
