"""What packages add is found by entry points, and loaded when it is used; a missing client is told with its extra."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain.errors import Refused
from odfd.runtime.buckets import address_of, open_store
from odfd.runtime.extensions import DOORS, EXPORTS, SOURCES, extensions, load_extension


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of others that is installed: what pip writes of it."""
    metadata = tmp_path / "odfd_more-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odfd-more\nVersion: 1.0\n")
    rows = [
        f"[{group}]\nMore = odfd_more:MORE\nBroken = odfd_more_missing:MORE\n" for group in (SOURCES, DOORS, EXPORTS)
    ]
    (metadata / "entry_points.txt").write_text("\n".join(rows))
    (tmp_path / "odfd_more.py").write_text("MORE = 'more'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions.cache_clear()
    yield
    extensions.cache_clear()
    sys.modules.pop("odfd_more", None)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("group", [SOURCES, DOORS, EXPORTS])
def test_what_a_package_adds_is_found_and_loaded_when_it_is_used(group: str) -> None:
    assert "More" in extensions(group)
    assert "odfd_more" not in sys.modules
    assert load_extension(group, "More", "things", "thing-kind") == "more"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["Unknown", "Broken"])
def test_what_is_not_installed_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=f"doors of kind {name} are not installed") as caught:
        load_extension(DOORS, name, f"doors of kind {name}", "door-kind")
    assert caught.value.rule == "door-kind"
    assert caught.value.hint


def test_a_client_that_is_not_installed_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    place = address_of("s3://readings", "eu-central-1")
    open_store(place, {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match="buckets need a client, obstore, which is not installed") as caught:
        open_store(place, {})
    assert caught.value.rule == "bucket-extra"
    assert "pip install 'odfd[bucket]'" in caught.value.hint
