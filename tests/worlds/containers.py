"""A real podman with an image of a few programs of this machine, made by the test and named by digest."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = ("dash", "cat", "env", "head", "ln", "mkdir", "mkfifo", "seq", "sleep", "touch")


@contextmanager
def image_of_programs() -> Iterator[str]:
    """Skips the test by name where podman is not there, or runs nothing."""
    podman, programs = shutil.which("podman"), [shutil.which(name) for name in PROGRAMS]
    if podman is None:
        pytest.skip("podman is not installed")
    if None in programs:
        pytest.skip(f"not all of {', '.join(PROGRAMS)} are on this machine")
    name = f"localhost/odfd-test-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="odfd-image-") as folder:
        _copy(Path(folder), [str(each) for each in programs])
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as packed:
            done = subprocess.run(
                [podman, "import", "-", name], stdin=packed.stdout, capture_output=True, text=True, check=False
            )
    if done.returncode:
        pytest.skip(f"podman takes no image here: {done.stderr.strip()[-200:]}")
    try:
        yield _digested(podman, name)
    finally:
        subprocess.run([podman, "image", "rm", "--force", name], check=True, capture_output=True)


def _digested(podman: str, name: str) -> str:
    shown = [podman, "image", "inspect", "--format", "{{.Digest}}", name]
    digest = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.strip()
    trial = subprocess.run(
        [podman, "run", "--rm", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", name, "env"],
        check=False,
        capture_output=True,
        text=True,
    )
    if trial.returncode:
        pytest.skip(f"podman runs nothing here: {trial.stderr.strip()[-200:]}")
    return f"{name}@{digest}"


def _copy(root: Path, programs: list[str]) -> None:
    for program in programs:
        linked = subprocess.run(["ldd", program], check=False, capture_output=True, text=True).stdout
        for each in {program, *re.findall(r"(/\S+) \(0x", linked)}:
            target = root / each.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, target)
    shell = root / "bin" / "sh"
    shell.parent.mkdir(exist_ok=True)
    shell.symlink_to(shutil.which("dash") or "dash")


def containers(which: str) -> list[str]:
    """Names of the containers that podman's filter fits, running or not: another suite on this machine has its own."""
    shown = ["podman", "ps", "--all", "--format", "{{.Names}}", "--filter", which]
    return subprocess.run(shown, check=True, capture_output=True, text=True).stdout.split()
