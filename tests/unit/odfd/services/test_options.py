"""What a person set reaches the part that it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from config.model import Settings
from engines.provision.settings import Isolation
from odfd.services.home import open_home
from odfd.services.options import engine_environ, spark_options


def test_the_java_of_the_settings_stands_for_that_of_the_person() -> None:
    settings, person = Settings(), {"PATH": "/bin", "JAVA_HOME": "/old"}
    assert engine_environ(settings, person) == person
    engine = replace(settings.engine, java_home="/opt/java")
    stated = replace(settings, engine=engine)
    assert engine_environ(stated, person) == {"PATH": "/bin", "JAVA_HOME": "/opt/java"}


def test_isolated_datasets_have_as_many_processes_as_is_said(tmp_path: Path) -> None:
    settings = Settings()
    apart = replace(settings, engine=replace(settings.engine, isolation="dataset", max_processes=7))
    with open_home(tmp_path) as home:
        assert spark_options(settings, home).isolation is Isolation.SHARED
        options = spark_options(apart, home)
    assert (options.isolation, options.processes) == (Isolation.DATASET, 7)
