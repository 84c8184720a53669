"""``python -m package wheel|deb|debian-root|image|lock|site|ui``: builds into ``out/``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chain.errors import Fault
from chain.terminal_text import visible
from package import image as node_image
from package.libraries import copy_libraries
from package.programs import ENGINE, HOME, PYTHON, SQL, leave_out, move, programs, run_compiler
from package.site import build as build_site
from package.staging import SHARED, TREE, engine_extras, home_page, maintainer, project, split, stage
from package.symbols import strip_libraries

OUT: Final = TREE / "out"
SOURCE_DATE: Final = "1767225600"
"""Seconds since 1970 that archives name as the time of every file: the same source gives the same bytes."""
UV: Final = (sys.executable, "-m", "uv", "pip")
NODE_LOCK: Final = TREE / "requirements" / "node.txt"
ENGINE_LOCK: Final = TREE / "requirements" / "engine.txt"
"""What the engine needs beside what a node needs."""
RECORDED: Final = OUT / "demo"
"""Where ``make demo-node`` keeps the node of the demo that ``odfctl demo`` shows."""
DEBIAN_ROOT: Final = OUT / "debian-root.tar"
"""A Debian with systemd and without us, in which the package is tried."""
SMALL: Final = ("-Zzstd", "-z12")
QUICK: Final = ("-Zzstd", "-z3")
"""Compression of packages, and of one whose files are compressed already."""
DEPENDS: Final = "python3 (>= 3.11), python3 (<< 3.12), debconf, procps, systemd | systemd-standalone-sysusers"
OF_DEBIAN: Final = {"share/zsh/site-functions": "share/zsh/vendor-completions"}
"""Folders of ``SHARED`` that programs of Debian look for under another name below ``/usr``."""
CONTROL: Final[dict[str, str]] = {
    "odfd": (
        f"Depends: {DEPENDS}\nRecommends: bubblewrap\nSuggests: odfd-engine, odfd-sql, prometheus\n"
        "Description: {description}\n A node with its command line: it mirrors, verifies and serves datasets.\n"
        " Queries take odfd-sql; ingesting, deriving and re-executing take odfd-engine (odfctl docs install).\n"
    ),
    "odfd-sql": (
        "Depends: odfd (= {version})\n"
        "Description: SQL over the datasets of an odfd node: odfctl sql, Flight SQL, the page's queries\n"
        " The node uses it from its next query on; only Flight SQL, where it is set, takes a restart.\n"
    ),
    "odfd-engine": (
        "Depends: odfd (= {version})\n"
        "Description: the Spark engine of an odfd node, with a Java: ingests, derives and re-executes datasets\n"
        " It also has the clients of databases and brokers. The node uses it after a restart, which dpkg does.\n"
    ),
    "odfd-demo": (
        "Depends: odfd (= {version})\n"
        "Description: a recorded node of the demo of odfd, in which a publisher lied\n"
        " odfctl demo runs it, without an engine and a network, and prints the address of its page.\n"
    ),
}
"""What is particular to each package."""


def main() -> int:
    match sys.argv[1:]:
        case ["wheel"]:
            print(wheel())
        case ["deb"]:
            print(*deb(), sep="\n")
        case ["debian-root"]:
            print(debian_root())
        case ["image"]:
            return image()
        case ["lock"]:
            lock()
        case ["site"]:
            print(build_site(OUT))
        case ["ui"]:
            copy_libraries(OUT / "libraries")
        case _:
            print("python -m package wheel|deb|debian-root|image|lock|site|ui", file=sys.stderr)
            return 2
    return 0


def _run(*words: str | Path) -> None:
    environment = os.environ | {"SOURCE_DATE_EPOCH": SOURCE_DATE, "PYTHONHASHSEED": "0", "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([str(word) for word in words], check=True, env=environment)


def wheel() -> Path:
    """Two builds of the same source give the same bytes."""
    source = OUT / "wheel"
    stage(source)
    command = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    _run(*command, "--wheel-dir", OUT, source)
    return next(OUT.glob(f"odfd-{project()['version']}-*.whl"))


def lock() -> None:
    """What a node without an engine needs, and what the engine needs beside that, in versions of the whole lock."""
    needed, engine = split()
    OUT.mkdir(exist_ok=True)
    wanted, pinned, without = (OUT / name for name in ("wanted.txt", "pinned.txt", "without.txt"))
    wanted.write_text("\n".join(needed) + "\n")
    lines = (TREE / "requirements" / "lock.txt").read_text().splitlines()
    pinned.write_text(
        "\n".join(line.removesuffix(" \\") for line in lines if "==" in line and line[0].isalnum()) + "\n"
    )
    overrides = tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["uv"]["override-dependencies"]
    without.write_text("\n".join(overrides) + "\n")
    options = ("-q", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate")
    _run(*UV, "compile", *options, "-c", pinned, "--override", without, wanted, "-o", NODE_LOCK)
    wanted.write_text("\n".join([*needed, *engine, *engine_extras()]) + "\n")
    _run(*UV, "compile", *options, "-c", pinned, "--override", without, wanted, "-o", ENGINE_LOCK)
    of_node = set(_blocks(NODE_LOCK))
    ENGINE_LOCK.write_text("".join(f"{each}\n" for each in _blocks(ENGINE_LOCK) if each not in of_node))


def _blocks(lock: Path) -> list[str]:
    """Returns the distributions of a lock, each with its hashes."""
    return re.split(r"\n(?=\S)", lock.read_text().rstrip("\n"))


def image() -> int:
    """A node without an engine, as an OCI layout that podman and docker load. Exit code of the process."""
    layout = OUT / "image"
    try:
        digest = node_image.build(layout, TREE / "requirements", wheel(), OUT / "engine-image")
    except Fault as fault:
        sys.stderr.write(visible(f"{fault}\n{fault.hint}\n"))
        return fault.exit_code
    print(f"manifest {digest}\nlayout   {layout}")
    return 0


def deb() -> list[Path]:
    """A node with all that it needs beside Python itself; what its queries and its engine need; a recorded node."""
    tree, sql, engine, version = OUT / "deb", OUT / "deb-sql", OUT / "deb-engine", project()["version"]
    for each in (tree, sql, engine):
        shutil.rmtree(each, ignore_errors=True)
    home = tree / HOME
    _install(home, "--require-hashes", "--no-build-isolation", "-r", NODE_LOCK)
    _install(home, wheel())
    _lay_out(tree)
    _install(engine / HOME, "--require-hashes", "--no-build-isolation", "-r", ENGINE_LOCK)
    leave_out(engine / HOME)
    strip_libraries(engine / HOME)
    move(home, sql / HOME, SQL)
    move(home, engine / HOME, ENGINE)
    run_compiler("compile_beside", engine, int(SOURCE_DATE))
    built = []
    for each, name, compression in ((tree, "odfd", SMALL), (sql, "odfd-sql", SMALL), (engine, "odfd-engine", QUICK)):
        _describe(each, name, version)
        built.append(_build(each, f"{name}_{version}_amd64", compression))
    if not (RECORDED / "odfd.toml").is_file():
        print("odfd-demo is left out: make demo-node records what is in it", file=sys.stderr)
        return built
    return [*built, _demo(version)]


def _install(home: Path, *wanted: str | Path) -> None:
    """Installs into a folder. Copies: what is stripped here would change in the cache of uv and in all made of it."""
    _run(*UV, "install", "-q", "--python", PYTHON, "--target", home, "--no-deps", "--link-mode=copy", *wanted)
    (home / ".lock").unlink(missing_ok=True)  # uv's own


def _demo(version: str) -> Path:
    """The recorded node of the demo, which runs on any machine."""
    tree = OUT / "deb-demo"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(RECORDED, tree / "usr" / "share" / "odfd" / "demo")
    _describe(tree, "odfd-demo", version)
    return _build(tree, f"odfd-demo_{version}_all", SMALL)


def _build(tree: Path, name: str, compression: Sequence[str]) -> Path:
    for path in tree.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (int(SOURCE_DATE), int(SOURCE_DATE)))
    package = OUT / f"{name}.deb"
    _run("dpkg-deb", "--root-owner-group", *compression, "--build", tree, package)
    return package


def debian_root() -> Path:
    """What the package needs is in it: the trial itself has no network."""
    OUT.mkdir(exist_ok=True)
    wanted = "systemd,systemd-sysv,dbus,python3,debconf,procps,bubblewrap,ca-certificates"
    _run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={wanted}", "bookworm", DEBIAN_ROOT)
    return DEBIAN_ROOT


def _lay_out(tree: Path) -> None:
    """Programs, and what belongs into folders that other packages share."""
    home = tree / HOME
    (tree / "usr" / "bin").mkdir(parents=True)
    for place, text in programs().items():
        (tree / place).write_text(text)
        (tree / place).chmod(0o755)
    for place, names in SHARED.items():
        target = tree / "usr" / OF_DEBIAN.get(place, place)
        target.mkdir(parents=True)
        for name in names:
            shutil.copyfile(home / place / name, target / name)
    _document(tree / "usr" / "share" / "doc" / "odfd")
    leave_out(home)
    for folder in [*home.rglob("__pycache__")]:
        shutil.rmtree(folder, ignore_errors=True)
    strip_libraries(home)
    run_compiler("compile_all", home, int(SOURCE_DATE))


def _document(folder: Path) -> None:
    """The pages that messages of the node name, under the names that they use, and examples."""
    shutil.copytree(TREE / "docs", folder / "docs", ignore=shutil.ignore_patterns("adr", "images", "schemas"))
    shutil.copytree(TREE / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "THREATS.md"):
        shutil.copyfile(TREE / name, folder / name)
    shutil.copyfile(TREE / "LICENSE", folder / "copyright")


def _describe(tree: Path, name: str, version: str) -> None:
    """Writes the control file, and the scripts that set the package up and remove it."""
    control = tree / "DEBIAN"
    control.mkdir(mode=0o755)
    for file in sorted((TREE / "package" / "debian").glob(f"{name}/*")):
        target = control / file.name
        shutil.copyfile(file, target)
        target.chmod(0o755 if file.read_text().startswith("#!") else 0o644)
    if name != "odfd":
        (tree / "usr" / "share" / "doc" / name).mkdir(parents=True)
        shutil.copyfile(TREE / "LICENSE", tree / "usr" / "share" / "doc" / name / "copyright")
    machine = "all" if name == "odfd-demo" else "amd64"
    more = CONTROL[name].format_map(project() | {"version": version})
    size = sum(-(-path.stat().st_size // 4096) * 4 for path in tree.rglob("*") if path.is_file())
    (control / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: {machine}\nSection: net\nPriority: optional\n"
        f"Maintainer: {maintainer()}\nInstalled-Size: {size}\n"
        f"Homepage: {home_page()}\n{more}"
    )


if __name__ == "__main__":
    sys.exit(main())
