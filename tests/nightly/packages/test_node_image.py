"""The image of a node as somebody starts it who knows nothing of it: rights taken away, files read-only, one volume."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines.image.oci import read_manifest
from package.image import STATE, USER

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LAYOUT = Path(__file__).parents[3] / "out" / "image"
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
PODMAN = (
    *("podman", "run", "--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=all"),
    *("--security-opt=no-new-privileges", "--ulimit", f"nofile={FILES}:{FILES}", "--ulimit", "nproc=4096:4096"),
)


@pytest.fixture
def image() -> str:
    """As podman knows it."""
    if not (LAYOUT / "index.json").is_file():
        pytest.skip("no image of a node was built: make image")
    if shutil.which("podman") is None:
        pytest.skip("no podman here")
    name = f"localhost/odfd@{read_manifest(LAYOUT)[0]}"
    trial = subprocess.run([*PODMAN, name, "--version"], check=False, capture_output=True, text=True)
    if trial.returncode:
        pytest.skip(f"podman cannot run it here: {trial.stderr.strip()[-200:]}")
    return name


@pytest.fixture
def volume() -> Iterator[str]:
    name = f"odfd-test-{uuid.uuid4().hex}"
    yield name
    subprocess.run(["podman", "volume", "rm", "--force", name], check=True, capture_output=True)


@contextmanager
def started(image: str, volume: str) -> Iterator[str]:
    """Name of the container of a node that is ready."""
    name = f"odfd-test-{uuid.uuid4().hex}"
    argv = [*PODMAN, f"--name={name}", "-v", f"{volume}:{STATE}", image]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []
            for line in process.stderr:
                lines.append(line)
                if '"ready"' in line:
                    break
            else:
                pytest.fail(f"it does not start: {''.join(lines)}")
            yield name
            subprocess.run(["podman", "kill", "--signal", "TERM", name], check=True, capture_output=True)
            process.communicate()
            assert process.returncode == 0
        finally:
            subprocess.run(["podman", "rm", "--force", "--ignore", name], check=True, capture_output=True)


def inside(container: str, *words: str) -> str:
    return subprocess.run(["podman", "exec", container, *words], check=True, capture_output=True, text=True).stdout


def test_a_node_keeps_its_identity_in_the_volume_and_answers_queries(image: str, volume: str) -> None:
    identities = []
    for _ in range(2):
        with started(image, volume) as container:
            status = json.loads(inside(container, "odfctl", "status", "-o", "json"))
            identities.append(status["nodeId"])
            assert json.loads(inside(container, "odfctl", "sql", "select 42 as x", "-o", "ndjson")) == {"x": 42}
            assert inside(container, "id", "-u").strip() == str(USER)
    assert identities[0] == identities[1]
