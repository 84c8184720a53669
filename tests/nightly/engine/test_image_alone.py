"""The engine image as a coordinator of others starts it: it names the image, mounts folders of its own, and waits.

It says neither command nor user, so both are the image's. Only the place where the engine listens is another here, a
socket in what is mounted, because a test opens no port to the machine.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engines.image.build import CONTRACT_PORT, RUN
from engines.image.installed import Image, prepare_image
from engines.listen_address import READY
from engines.sandbox.container import NAME
from worlds import foreign_coordinator as foreign
from worlds.eventually import PATIENCE

pytestmark = pytest.mark.engine
INSIDE = "/opt/engine"
TIME = pa.timestamp("ms", "UTC")
DAY = 86_400_000
DAILY = "select time_bucket(interval '1' day, event_time) as event_time, sum(v) as s from a group by 1"
COMMAND = RUN["Cmd"]
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
PODMAN = (
    *("podman", "run", "--rm", "--pull=never", "--network=none"),
    *("--ulimit", f"nofile={FILES}:{FILES}", "--ulimit", "nproc=4096:4096"),
)


@pytest.fixture
def image(tmp_path: Path) -> str:
    """As podman knows it."""
    found = prepare_image(tmp_path / "cache")
    if not isinstance(found, Image):
        pytest.skip(f"no engine image: {found}")
    name = f"localhost/{NAME}@{found.manifest}"
    if shutil.which("podman") is None:
        pytest.skip("no podman here")
    trial = subprocess.run([*PODMAN, "--entrypoint=", name, "true"], check=False, capture_output=True, text=True)
    if trial.returncode:
        pytest.skip(f"podman cannot run the engine image here: {trial.stderr.strip()[-200:]}")
    return name


@contextmanager
def started(image: str, *words: str, mounts: tuple[str, ...] = ()) -> Iterator[str]:
    """Where it says that it listens."""
    name = f"odfd-test-{uuid.uuid4().hex}"
    argv = [*PODMAN, f"--name={name}", *mounts, image, *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line and process.stderr is not None:
                pytest.fail(f"it does not start: {process.stderr.read()}")
            assert line.startswith(READY)
            yield line.removeprefix(READY).strip()
            subprocess.run(["podman", "kill", "--signal", "TERM", name], check=True, capture_output=True)
            process.wait(PATIENCE)
            assert process.returncode == 0
        finally:
            subprocess.run(["podman", "rm", "--force", "--ignore", name], check=True, capture_output=True)


def test_with_no_word_it_listens_where_the_reference_asks(image: str) -> None:
    with started(image) as address:
        assert address == f"0.0.0.0:{CONTRACT_PORT}"


def test_it_derives_for_a_coordinator_of_others(image: str, tmp_path: Path) -> None:
    """In folders of whoever started it, which the engine's user must be able to write."""
    assert isinstance(COMMAND, list)
    shared = tmp_path / "shared"
    (shared / "kept").mkdir(parents=True)
    mount = ("-v", f"{shared}:{INSIDE}")
    with started(image, *COMMAND[:-1], f"unix:{INSIDE}/socket", mounts=mount) as address:
        assert address == f"unix:{INSIDE}/socket"
        coordinator = foreign.Coordinator(
            f"unix:{shared}/socket", shared / "kept", shared / "work", foreign.Query([(None, DAILY)]),
            system_time=9 * DAY * 1_000_000, seen=lambda path: f"{INSIDE}/{path.relative_to(shared)}",
        )  # fmt: skip
        for number in range(2):
            answer = coordinator.transact([_days(shared, number)])
            assert answer.kind == foreign.SUCCESS, answer.message
    assert coordinator.table()["s"].to_pylist() == [1, 2, 3]


def _days(folder: Path, number: int) -> foreign.Input:
    """Two days, and a watermark at the second: what was before it is settled."""
    days = [2 * number, 2 * number + 1]
    rows = pa.table({
        "offset": pa.array(days, pa.int64()), "op": pa.array([0, 0], pa.int32()),
        "system_time": pa.array([number + 1] * 2, TIME), "event_time": pa.array([day * DAY for day in days], TIME),
        "v": pa.array([day + 1 for day in days], pa.int64()),
    })  # fmt: skip
    path = folder / f"slice-{number}"
    pq.write_table(rows, path)
    mark = ((number + 1) * 1_000_000, days[1] * DAY * 1_000_000)
    return foreign.Input(b"a" * 32, "a", [path], [mark], rows.schema, (days[0], days[1]))
