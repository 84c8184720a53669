"""Files of slices: no reader gets one whose bytes do not match its hash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chain.errors import Environment
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.files import DAMAGED, ObjectDamaged
from odfd.store.catalog import Catalog
from odfd.store.damage import DamagedBlock
from odfd.store.directory import HomeTerms, StateDirectory, open_state_directory
from odfd.store.slice_files import MISSING, SliceFiles

_DATASET = DatasetId.parse("did:odf:" + "fed01" + "7f" * 32)
_DATA = bytes(range(256)) * 400


def _fault(home: StateDirectory, name: Multihash) -> Environment:
    with pytest.raises(Environment) as told:
        home.slices.path(name, _DATASET, 7)
    return told.value


def test_a_slice_is_hashed_again_when_its_file_changed(tmp_path: Path) -> None:
    found: list[tuple[DatasetId, DamagedBlock]] = []
    terms = HomeTerms(found_damaged=lambda dataset, spot: found.append((dataset, spot)))
    with open_state_directory(tmp_path / "state", terms=terms) as home:
        with home.database.write() as connection:
            Catalog(connection).add("cities", _DATASET, home.clock.now())
        name = home.objects.add_bytes(_DATA)
        path = home.slices.of(_DATASET).path(name, 7)
        assert path == home.slices.path(name, _DATASET, 7)
        path.chmod(0o600)
        path.write_bytes(_DATA[:-1] + b"\x00")
        fault = _fault(home, name)
        assert (fault.rule, fault.place) == (DAMAGED, "cities block #7")
        assert "odfctl pull cities --repair" in fault.hint
        assert "AT BLOCK '#6'" in fault.hint
        assert [(dataset, spot.sequence, spot.rule) for dataset, spot in found] == [(_DATASET, 7, DAMAGED)]
        path.unlink()
        assert (_fault(home, name).rule, _fault(home, name).place) == (MISSING, "cities block #7")
        assert len(found) == 1, "a mirror may still fetch it"
        home.objects.add_bytes(_DATA)
        assert home.slices.path(name, _DATASET, 7).read_bytes() == _DATA


def test_bytes_that_a_disk_lost_are_found_on_suspicion_and_after_a_day(tmp_path: Path) -> None:
    now = 1000.0
    with open_state_directory(tmp_path / "state") as home:
        files = SliceFiles(home.objects, home.catalog, lambda *_: None, lambda: now)
        name = home.objects.add_bytes(_DATA)
        path = files.path(name, _DATASET, 7)
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        path.chmod(0o600)
        path.write_bytes(_DATA[:-1] + b"\x00")
        os.utime(path, ns=times)
        assert files.path(name, _DATASET, 7) == path, "its mark is the same"
        now += 86_400
        with pytest.raises(ObjectDamaged):
            files.path(name, _DATASET, 7)
        path.write_bytes(_DATA)
        files.path(name, _DATASET, 7)
        path.write_bytes(_DATA[:-1] + b"\x00")
        with pytest.raises(ObjectDamaged):
            files.of(_DATASET).check_again(name, 7)
