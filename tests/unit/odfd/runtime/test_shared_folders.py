"""A folder that only the daemon sees is refused: what a person has written there would be gone with the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.errors import Environment, Refused
from odfd.runtime.systemd import check_shared, private_folders

OWN = """\
360 313 254:0 / / ro,nosuid,relatime shared:64 master:1 - ext4 /dev/vda rw
361 360 0:46 / /tmp rw,nosuid,nodev shared:80 master:2 - tmpfs tmpfs rw,size=2468412k
406 361 0:46 /systemd-private-08ed5e-odfd.service-nehx2C/tmp /tmp rw,nosuid,nodev shared:81 - tmpfs tmpfs rw
414 360 254:0 /var/tmp/systemd-private-08ed5e-odfd.service-nsS8CF/tmp /var/tmp rw,relatime - ext4 /dev/vda rw
"""
USUAL = "\n".join(OWN.splitlines()[:2])


def test_only_what_systemd_made_for_the_service_is_private() -> None:
    assert list(private_folders(OWN)) == ["/tmp", "/var/tmp"]
    assert list(private_folders(USUAL)) == []
    assert list(private_folders("nonsense\n\n")) == []


@pytest.mark.parametrize("folder", ["/tmp/backup", "/tmp", "/var/tmp/a/b"])
def test_a_folder_there_is_refused_with_what_to_do(folder: str) -> None:
    with pytest.raises(Refused, match="only the daemon sees") as told:
        check_shared(Path(folder), OWN)
    assert "ReadWritePaths=" in told.value.hint


def test_other_folders_are_taken_whether_they_are_there_or_not(tmp_path: Path) -> None:
    check_shared(tmp_path, USUAL)
    check_shared(tmp_path / "new", USUAL)
    check_shared(Path("/tmpfiles"), OWN)


def test_a_folder_that_may_not_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(Environment, match="may not open /root/out"):
        check_shared(Path("/root/out"), USUAL)
