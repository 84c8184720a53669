"""What packages add is found by entry points, and loaded when it is used; a missing client is told with its extra."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain.errors import Refused
from odfd.cli.main import main
from odfd.errors import ExitCode
from odfd.runtime.buckets import address_of, open_store
from odfd.runtime.extensions import DOORS, EXPORTS, SOURCES, ExportFormats, extensions, load_extension


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of others that is installed: what pip writes of it."""
    metadata = tmp_path / "odfd_more-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odfd-more\nVersion: 1.0\n")
    rows = [f"{name} = odfd_more:MORE\nBroken = odfd_more_missing:MORE\n" for name in ("More", "More", "describe.more")]
    groups = zip((SOURCES, DOORS, EXPORTS), rows, strict=True)
    (metadata / "entry_points.txt").write_text("\n".join(f"[{group}]\n{row}" for group, row in groups))
    (tmp_path / "odfd_more.py").write_text("MORE = 'more'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions.cache_clear()
    yield
    extensions.cache_clear()
    sys.modules.pop("odfd_more", None)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("group", "name"), [(SOURCES, "More"), (DOORS, "More"), (EXPORTS, "describe.more")])
def test_what_a_package_adds_is_found_and_loaded_when_it_is_used(group: str, name: str) -> None:
    assert name in extensions(group)
    assert "odfd_more" not in sys.modules
    assert load_extension(group, name, "things", "thing-kind") == "more"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["Unknown", "Broken"])
def test_what_is_not_installed_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=f"doors of kind {name} are not installed") as caught:
        load_extension(DOORS, name, f"doors of kind {name}", "door-kind")
    assert caught.value.rule == "door-kind"
    assert caught.value.hint


@pytest.mark.usefixtures("package")
def test_formats_of_an_option_are_those_that_are_installed() -> None:
    formats = ExportFormats("describe", "plain")
    assert list(formats) == ["plain", "croissant", "frictionless", "more"]
    assert "more" in formats
    assert "huggingface" not in formats, "it is of another option"
    assert formats.load("more") == "more"
    with pytest.raises(Refused, match="exports as less are not installed"):
        formats.load("less")


def test_every_export_of_odfd_can_be_loaded() -> None:
    own = {name: each.load() for name, each in extensions(EXPORTS).items()}
    assert {name.partition(".")[0] for name in own} == {"describe", "events", "format", "site", "table"}


def test_an_unknown_format_is_told_with_those_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "weather", "a.csv", "--describe", "dublin-core"]) == ExitCode.USAGE
    assert "invalid choice: 'dublin-core' (choose from" in (told := capsys.readouterr().err)
    assert "croissant" in told


def test_a_client_that_is_not_installed_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    place = address_of("s3://readings", "eu-central-1")
    open_store(place, {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match="buckets need a client, obstore, which is not installed") as caught:
        open_store(place, {})
    assert caught.value.rule == "bucket-extra"
    assert "pip install 'odfd[bucket]'" in caught.value.hint
