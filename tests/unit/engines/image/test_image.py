"""Images over small trees: the same inputs make the same digests, and nothing but those inputs is ever unpacked."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from chain.errors import Environment
from engines.identity import FileDigests, code_digest
from engines.image import build
from engines.image.build import install_wheels
from engines.image.installed import (
    PREPARED_LISTING,
    Image,
    keep_preparation,
    prepare_image,
    staged_preparation,
    unpack_for_all,
    write_record,
)
from engines.image.oci import (
    CODE,
    LAYER,
    LISTING,
    ROOTFS,
    TREE,
    Descriptor,
    Item,
    LayerContent,
    TreeEntry,
    digest_of,
    encode,
    files_below,
    read_manifest,
    unpack_image,
    write_image,
    write_layers,
)


def grown(folder: Path, order: list[str], mode: int, times: int) -> Path:
    """The same three files, made in another order, with other times and a loose umask."""
    contents = {"bin/run": b"#!/bin/sh\n", "lib/a.py": b"a = 1\n", "lib/deep/b.py": b"b = 2\n"}
    for name in order:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[name])
        path.chmod(mode | (0o100 if name == "bin/run" else 0))
        os.utime(path, (times, times))
    (folder / "link").symlink_to("lib/a.py")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_bytes(str(times).encode())
    return folder


def built(layout: Path, tree: Path) -> str:
    more = [Item(PurePosixPath("opt/x/more"), b"more"), Item(PurePosixPath("etc/hosts"), b"127.0.0.1 localhost\n")]
    parts = (LayerContent(files_below(tree, "opt/x"), ("tmp",)), LayerContent(more, owner=5))
    layers, entries = write_layers(layout / "blobs" / "sha256", parts, 7)
    annotations = {TREE: digest_of(encode(entries)), CODE: code_digest(FileDigests(None))}
    return write_image(layout, layers, {"os": "linux"}, annotations, "x")[0]


@pytest.mark.slow
def test_the_same_inputs_make_the_same_digest(tmp_path: Path) -> None:
    names = ["bin/run", "lib/a.py", "lib/deep/b.py"]
    one = built(tmp_path / "1", grown(tmp_path / "a", names, 0o644, 1_000))
    other = built(tmp_path / "2", grown(tmp_path / "b", names[::-1], 0o666, 2_000_000))
    assert one == other
    (tmp_path / "b" / "lib" / "a.py").write_bytes(b"a = 2\n")
    assert built(tmp_path / "3", tmp_path / "b") != one


def wheel(folder: Path) -> str:
    """A wheel with a command, as a line of requirements."""
    path, about = folder / "tool-1.0-py3-none-any.whl", "tool-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tool.py", "main = print\n")
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/entry_points.txt", "[console_scripts]\ntool = tool:main\n")
        file.writestr(f"{about}/RECORD", "")
    return f"tool @ {path.as_uri()} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.mark.slow
def test_it_does_not_matter_where_the_builder_lies(tmp_path: Path) -> None:
    """Commands begin with the path of the Python that they are installed for, and records tell what they hash to."""
    made, sizes, wanted = [], [], wheel(tmp_path)
    for number, place in enumerate(("here", "in/a/folder/elsewhere")):
        home = tmp_path / place
        venv.create(home, symlinks=True, with_pip=False)
        site = tmp_path / f"site-{number}"
        install_wheels(wanted, site, "x86_64-manylinux_2_28", tmp_path, str(home / "bin" / "python"))
        sizes.append(len(list(site.rglob("*"))))
        made.append(built(tmp_path / f"layout-{number}", site))
    assert made[0] == made[1]
    assert sizes[0] == sizes[1] >= 5


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    built(tmp_path / "layout", grown(tmp_path / "tree", ["bin/run", "lib/a.py", "lib/deep/b.py"], 0o644, 5))
    return tmp_path / "layout"


@pytest.mark.slow
def test_an_unpacked_image_is_what_went_in(layout: Path, tmp_path: Path) -> None:
    root = unpack_image(layout, tmp_path / "cache", FileDigests(None))
    assert (root / "opt/x/link").read_bytes() == b"a = 1\n"
    assert os.access(root / "opt/x/bin/run", os.X_OK)
    assert (root / "tmp").is_dir()
    assert not (root / "opt/x/__pycache__").exists()
    assert unpack_image(layout, tmp_path / "cache", FileDigests(None)) == root


@pytest.mark.slow
def test_nodes_share_what_the_installation_unpacked(layout: Path, tmp_path: Path) -> None:
    """It is checked by each of them as if it were its own; a node unpacks the image only where nobody did."""
    digest, manifest = read_manifest(layout)
    write_record(layout, digest, manifest.config.digest)
    alone = prepare_image(tmp_path / "alone", layout)
    assert isinstance(alone, Image)
    assert alone.rootfs.is_relative_to(tmp_path / "alone")
    unpack_for_all(layout)
    one, other = (prepare_image(tmp_path / name, layout) for name in ("one", "other"))
    assert isinstance(one, Image)
    assert one == other
    assert (one.rootfs / "opt/x/link").read_bytes() == b"a = 1\n"
    assert not (tmp_path / "one" / "engine-image").exists()
    change_file(one.rootfs)
    for name in ("one", "new"):
        told = prepare_image(tmp_path / name, layout)
        assert "cannot be used" in str(told)
        assert "has another content" in str(told)
    unpack_for_all(layout)
    assert prepare_image(tmp_path / "one", layout) == one


def unpack_anew(layout: Path) -> None:
    digest, manifest = read_manifest(layout)
    write_record(layout, digest, manifest.config.digest)
    unpack_for_all(layout)


def prepare(layout: Path, image: Image) -> Path:
    """Where it was staged."""
    staged = staged_preparation(image)
    (staged / "bytecode").mkdir()
    (staged / "bytecode" / "a.pyc").write_bytes(b"a = 1")
    keep_preparation(layout, image, staged)
    return staged


@pytest.mark.slow
def test_what_was_prepared_is_shared_and_checked(layout: Path, tmp_path: Path) -> None:
    """Attack T-QUERY-01: other bytecode or another class data archive beside the image.

    Defence: made in the sandbox from the image alone; each file is compared with a pinned list.

    Beside the image's files, for all nodes, until the image is unpacked anew.
    """
    unpack_anew(layout)
    image = prepare_image(tmp_path / "one", layout)
    assert isinstance(image, Image)
    assert image.prepared is None
    staged = prepare(layout, image)
    other = prepare_image(tmp_path / "other", layout)
    assert isinstance(other, Image)
    assert other.prepared is not None
    assert (other.prepared / "bytecode" / "a.pyc").read_bytes() == b"a = 1"
    assert not staged.exists()
    for damage in (
        lambda folder: (folder / "bytecode" / "a.pyc").write_bytes(b"a = 9"),
        lambda folder: (folder / "more").write_bytes(b""),
        lambda folder: (folder / "bytecode" / "a.pyc").unlink(),
        lambda folder: folder.with_name(PREPARED_LISTING).write_bytes(b"[]"),
    ):
        prepare(layout, image)
        assert prepare_image(tmp_path / "one", layout) == other
        damage(other.prepared)
        assert "cannot be used" in str(prepare_image(tmp_path / "one", layout))
    unpack_anew(layout)
    assert prepare_image(tmp_path / "one", layout) == image


@pytest.mark.slow
def test_a_link_is_not_prepared(layout: Path, tmp_path: Path) -> None:
    unpack_anew(layout)
    image = prepare_image(tmp_path / "one", layout)
    assert isinstance(image, Image)
    staged = staged_preparation(image)
    (staged / "a.pyc").symlink_to("/etc/passwd")
    with pytest.raises(Environment, match="neither a file nor a folder"):
        keep_preparation(layout, image, staged)
    assert prepare_image(tmp_path / "one", layout) == image


@pytest.mark.slow
def test_files_are_as_old_as_the_layer_says(layout: Path, tmp_path: Path) -> None:
    """Wherever they are unpacked: what was made of them knows them by that."""
    root = unpack_image(layout, tmp_path / "cache", FileDigests(None))
    assert {path.stat().st_mtime for path in root.rglob("*") if path.is_file() and not path.is_symlink()} == {7}


def add_file(root: Path) -> None:
    (root / "opt/x/planted").write_bytes(b"")


def change_file(root: Path) -> None:
    (root / "opt/x/lib/a.py").write_bytes(b"a = 9\n")


def drop_file(root: Path) -> None:
    (root / "opt/x/lib/a.py").unlink()


def open_file(root: Path) -> None:
    (root / "opt/x/lib/a.py").chmod(0o666)


def turn_link(root: Path) -> None:
    (root / "opt/x/link").unlink()
    (root / "opt/x/link").symlink_to("/etc/passwd")


def change_listing(root: Path) -> None:
    listing = root.parent / LISTING
    listing.write_bytes(listing.read_bytes().replace(b'"opt/x/more"', b'"opt/x/less"'))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [add_file, change_file, drop_file, open_file, turn_link, change_listing])
def test_a_changed_file_is_found_at_the_next_start(
    layout: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Attack T-QUERY-01: another engine image under the same name.

    Defence: pinned by digest; each unpacked file is compared with the list that the manifest names.
    """
    damage(unpack_image(layout, tmp_path / "cache", FileDigests(None)))
    with pytest.raises(Environment) as fault:
        unpack_image(layout, tmp_path / "cache", FileDigests(None))
    assert fault.value.rule == "image-tree"


@pytest.mark.slow
def test_a_changed_byte_of_a_layer_is_found(layout: Path, tmp_path: Path) -> None:
    _, manifest = read_manifest(layout)
    blob = layout / "blobs" / "sha256" / manifest.layers[0].digest.removeprefix("sha256:")
    raw = bytearray(blob.read_bytes())
    raw[raw.index(b"a = 1")] ^= 1
    blob.write_bytes(raw)
    with pytest.raises(Environment, match="a layer is not"):
        unpack_image(layout, tmp_path / "cache", FileDigests(None))
    assert not list((tmp_path / "cache").glob(f"*/{ROOTFS}"))


def test_a_changed_manifest_is_found(layout: Path) -> None:
    digest, _ = read_manifest(layout)
    path = layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
    path.write_bytes(path.read_bytes().replace(b'"size":', b'"size" :'))
    with pytest.raises(Environment, match="the manifest"):
        read_manifest(layout)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o755
    return info


EVIL = {
    "upwards": [member("../out")],
    "absolute": [member("/etc/passwd")],
    "hidden upwards": [member("a", tarfile.DIRTYPE), member("a/../../out")],
    "through a link": [member("a", tarfile.SYMTYPE, ".."), member("a/out")],
    "twice": [member("a"), member("a")],
    "over a link": [member("a", tarfile.SYMTYPE, "../../out"), member("a")],
    "a hard link": [member("a", tarfile.LNKTYPE, "/etc/passwd")],
    "a device": [member("a", tarfile.CHRTYPE)],
    "no parent": [member("a/b")],
    "itself": [member("./")],
}


@pytest.mark.parametrize("name", EVIL)
def test_a_layer_stays_inside(tmp_path: Path, name: str) -> None:
    """Attack T-QUERY-01: an image that unpacks outside of its folder.

    Defence: only files, folders and links below real folders, each once.

    Of an image whose every digest is right: what it wants is refused for what it is.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for each in EVIL[name]:
            tar.addfile(each)
    digest = "sha256:" + hashlib.sha256(raw.getvalue()).hexdigest()
    blobs = tmp_path / "layout" / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    (blobs / digest.removeprefix("sha256:")).write_bytes(raw.getvalue())
    layer = Descriptor(media_type=LAYER, digest=digest, size=len(raw.getvalue()))
    write_image(tmp_path / "layout", [layer], {}, {TREE: "sha256:0"}, "x")
    with pytest.raises(Environment) as fault:
        unpack_image(tmp_path / "layout", tmp_path / "cache", FileDigests(None))
    assert fault.value.rule == "image-layer"
    assert not (tmp_path / "out").exists()


def package(folder: Path, *members: tarfile.TarInfo) -> Path:
    """A .deb with empty files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        for each in members:
            tar.addfile(each)
    parts = [(b"debian-binary", b"2.0\n"), (b"control.tar.xz", b"odd"), (b"data.tar.xz", data.getvalue())]
    raw = b"!<arch>\n"
    for name, content in parts:
        header = name.ljust(16) + b"0".ljust(12) + b"0".ljust(6) + b"0".ljust(6) + b"100644".ljust(8)
        raw += header + str(len(content)).encode().ljust(10) + b"`\n" + content + b"\n" * (len(content) % 2)
    path = folder / "x.deb"
    path.write_bytes(raw)
    return path


def test_packages_land_below_usr(tmp_path: Path) -> None:
    deb = package(
        tmp_path, member("./bin", tarfile.DIRTYPE), member("./bin/tool"),
        member("./lib64/ld.so", tarfile.SYMTYPE, "/lib/ld"),
        member("./usr/share/doc/x/copyright"), member("./etc/thing"),
    )  # fmt: skip
    found = {str(item.path): item for item in build.package_items(deb)}
    assert set(found) == {"usr/bin/tool", "usr/lib64/ld.so", "etc/thing"}
    assert found["usr/lib64/ld.so"].source == "/usr/lib/ld"
    assert found["usr/bin/tool"].executable


def test_what_is_no_package_and_no_lock_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_bytes(b"!<arch>\nshort")
    with pytest.raises(Environment, match="no Debian package"):
        list(build.package_items(tmp_path / "x.deb"))
    (tmp_path / "lock").write_text("# head\nbash 5.2 nothex\n")
    with pytest.raises(Environment, match="not a lock"):
        build.read_lock(tmp_path / "lock")


def test_the_lock_names_every_package_once() -> None:
    locked = build.read_lock(Path(__file__).parents[4] / "requirements" / "engine-image.txt")
    assert sorted(each.name for each in locked) == sorted(build.PACKAGES)


def test_a_package_that_is_not_the_locked_one_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(wanted: str, folder: Path) -> Path:
        assert wanted == "bash=1"
        (folder / "bash_1.deb").write_bytes(b"another")
        return folder / "bash_1.deb"

    monkeypatch.setattr(build, "_download", download)
    with pytest.raises(Environment, match="not the file that the lock names"):
        build.fetch_package(build.Locked("bash", "1", "0" * 64), tmp_path)
    assert not list(tmp_path.glob("*.deb"))


def test_entries_sort_by_path() -> None:
    entries = [TreeEntry("b", "d", 0o755, ""), TreeEntry("a", "l", 0o777, "b")]
    assert encode(entries) == encode(entries[::-1])
