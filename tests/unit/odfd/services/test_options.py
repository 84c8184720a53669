"""What a person set reaches the part that it is for."""

from __future__ import annotations

from dataclasses import replace

from config.model import Settings
from odfd.services.options import engine_environ


def test_the_java_of_the_settings_stands_for_that_of_the_person() -> None:
    settings, person = Settings(), {"PATH": "/bin", "JAVA_HOME": "/old"}
    assert engine_environ(settings, person) == person
    engine = replace(settings.engine, java_home="/opt/java")
    stated = replace(settings, engine=engine)
    assert engine_environ(stated, person) == {"PATH": "/bin", "JAVA_HOME": "/opt/java"}
