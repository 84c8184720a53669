"""Configures all tests: no example has a deadline, long tests start first, and collection collects no garbage."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import tempfile
from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
from structlog.dev import plain_traceback
from xdist.scheduler import LoadScopeScheduling

pytest_plugins: Final = ["worlds.required_parts", "worlds.proven", "worlds.leaks"]

settings.register_profile("odfd", max_examples=35, deadline=None, derandomize=True, database=None)
"""No test asserts a time, so no example has a deadline; a run of one commit tries the same examples as the next."""
settings.load_profile("odfd")
settings.register_profile("quick", settings.get_profile("odfd"), max_examples=20)
"""``make quick``."""
settings.register_profile(
    "nightly",
    settings.get_profile("odfd"),
    max_examples=100,
    derandomize=False,
    database=DirectoryBasedExampleDatabase("out/examples"),
)
"""``make nightly``: other examples each time; what failed is kept, and tried first the next time."""

structlog.configure(
    processors=[structlog.processors.add_log_level, structlog.dev.ConsoleRenderer(exception_formatter=plain_traceback)]
)
"""A bug that a test provokes is logged as plain text: colouring its stack takes longer than the rest of such a test."""

gc.disable()
os.environ.setdefault("ODFD_FLOWS_FOLLOW", "false")
os.environ.setdefault("ODFD_ENGINE_START_SECONDS", "600")
"""For daemons: nothing is pulled that a test does not pull, and an engine has ten minutes to start under load."""

TESTS: Final = Path(__file__).parent
FIRST: Final = ("engine/", "cli/", "e2e/", "contract/", "sim/", "node/")
"""Folders in the order of what a file of theirs costs: a long one that starts last leaves the other processes idle."""
WAITING: Final = ("cli/", "e2e/", "contract/")
"""Folders whose tests wait for daemons, brokers and timers for most of their time."""
APART: Final = ("cli/", "e2e/", "nightly/mutants/")
"""Folders whose tests each start processes of their own, and share nothing but what their module makes."""
SHARED: Final = ("e2e/page/",)
NIGHTLY: Final = "nightly/"

SPARK: Final = "engine/"
"""What units that share a JVM begin with."""
SPARKS: Final = 1
"""Processes that have one. Each JVM has to start, and is slow until it has compiled what all tests there run: fifteen
seconds of a core. Its tests take half as long as all others, and come first."""

MEMORY: Final = Path("/dev/shm")
"""A file system in memory, where there is one."""
ROOM: Final = 2 << 30
"""Free bytes below which it is not used: a few tests at a time need them, and failed tests leave files."""
FAILED: Final = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-to", type=Path, help="write the ids of failed tests to this file, one in a line")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Writes nothing if the run was broken off: its list would lack what never ran."""
    file = config.getoption("--failed-to")
    if file is None or exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    stats = terminalreporter.stats
    failed = {report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])}
    file.write_text("".join(f"{each}\n" for each in sorted(failed)), encoding="utf-8")


def _no_files(folder: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if (path := Path(folder, name)).exists() and not (path.is_file() or path.is_dir())}


def _is_in_memory(node: pytest.Item) -> bool:
    marks = {mark.name for mark in node.iter_markers()}
    return not marks & {"engine", "e2e"} and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A folder in memory for tests without daemons and engines: these wait for a disk longer than they compute, and the
    others write gigabytes. Files of a failed test go to where pytest keeps them. pytest's own fixture lists the folders
    of all tests before it makes one."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    if not _is_in_memory(request.node):
        place = tmp_path_factory.mktemp(name)
        yield place
        if not request.node.stash.get(FAILED, False):
            shutil.rmtree(place, ignore_errors=True)
        return
    with tempfile.TemporaryDirectory(prefix="odfd-", dir=MEMORY, ignore_cleanup_errors=True) as memory:
        yield Path(memory)
        if request.node.stash.get(FAILED, False):
            kept = tmp_path_factory.mktemp(name)
            shutil.copytree(memory, kept, symlinks=True, ignore=_no_files, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def forking() -> Iterator[Any]:
    """The server of this process that forks programs, from the first test that needs one to the end. It is made here: a
    fixture that two folders import is made for each of them."""
    from worlds.forked import Forking

    made = Forking()
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[Path]:
    """The socket of an engine of this process, made as ``forking`` is. The path of a socket has 107 bytes at most, and
    folders of tests have long names."""
    from worlds.shared_spark import open_engine

    with tempfile.TemporaryDirectory(prefix="odfd-spark-") as folder, open_engine(Path(folder)) as socket_of_engine:
        yield socket_of_engine


@cache
def unit_of(nodeid: str) -> str:
    """Returns the unit of a test, which one process runs: its file, or itself where tests share nothing. Rules of the
    tree share what they parsed."""
    test = nodeid.removeprefix("tests/")
    if test.startswith("meta/"):
        return "meta"
    return test if test.startswith(APART) and not test.startswith(SHARED) else test.partition("::")[0]


def rank_of(nodeid: str) -> int:
    """Returns the place of a test's folder among those that start first."""
    unit = unit_of(nodeid)
    return next((rank for rank, folder in enumerate(FIRST) if unit.startswith(folder)), len(FIRST))


class Numbered(list[str]):
    """The tests of a process, with their numbers: xdist asks for each, and a list compares all before to find it."""

    def __init__(self, tests: Iterable[str]) -> None:
        super().__init__(tests)
        self._numbers = {test: number for number, test in enumerate(self)}

    def index(self, test: str, *_: Any) -> int:
        return self._numbers[test]


class Kind:
    """Units that a few processes take first, and others when nothing else is left: the few make what fixtures of the
    session share, and the others have work for the cores meanwhile."""

    def __init__(self, folders: tuple[str, ...], most: int) -> None:
        self.folders, self.most = folders, most
        self._takers: set[Any] = set()

    def admit(self, node: Any, running: Container[Any]) -> bool:
        """Returns whether a process is one of the few. It becomes one if fewer than ``most`` of them still run."""
        if node not in self._takers and sum(each in running for each in self._takers) < self.most:
            self._takers.add(node)
        return node in self._takers


def kinds_for(processes: int) -> tuple[Kind, ...]:
    return Kind((SPARK,), SPARKS), Kind(WAITING, max(1, processes // 2))


class Units(LoadScopeScheduling):
    """Gives units to processes in the order in which they were collected, but for those of a ``Kind``."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._kinds = kinds_for(self.numnodes)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = Numbered(collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Drops a unit that is done: after each test, xdist counts what is left of all that a process ever had."""
        unit = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][unit].values()):
            del self.assigned_work[node][unit]

    def _assign_work_unit(self, node: Any) -> None:
        """Puts the first unit that is for this process before all others. Any process takes any if there is none."""
        first = next((unit for unit in self.workqueue if self._admits(unit, node)), None)
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _admits(self, unit: str, node: Any) -> bool:
        kind = next((kind for kind in self._kinds if unit.startswith(kind.folders)), None)
        return kind is None or kind.admit(node, self.assigned_work)

    def remove_node(self, node: Any) -> str | None:
        """Fails the test that ended its process (``timeout``), and gives out the rest of its unit again.

        xdist would give out the test again, eight times, and units that are done too, for which a process waits for
        ever.
        """
        units = self.assigned_work[node]
        running = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        for name, unit in list(units.items()):
            unit.pop(running, None)
            if all(unit.values()):
                del units[name]
        super().remove_node(node)
        return running


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units:
    return Units(config, log)


def brief(kind: Any) -> Any:
    """Reports a test to the controller once, not six times: short output shows no more when all goes well."""

    class Brief(kind):  # type: ignore[misc]
        def pytest_runtest_logstart(self) -> None: ...

        def pytest_runtest_logfinish(self) -> None: ...

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or not report.passed:
                super().pytest_runtest_logreport(report)

    return Brief


def pytest_configure(config: pytest.Config) -> None:
    """Ends a process of xdist without taking its modules apart, which takes seconds: it has reported everything. DuckDB
    would also print how much of it is frozen. Exits that are registered later, as of temporary folders, run before."""
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)
    else:
        atexit.register(gc.unfreeze)


def pytest_sessionstart(session: pytest.Session) -> None:
    plugins, option = session.config.pluginmanager, session.config.option
    worker: Any = next((each for each in plugins.get_plugins() if hasattr(each, "sendevent")), None)
    if worker is None or option.verbose > 0 or option.durations is not None or option.xmlpath is not None:
        return
    plugins.unregister(worker)
    worker.__class__ = brief(type(worker))
    plugins.register(worker)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.removeprefix("tests/").startswith(NIGHTLY):
        item.add_marker(pytest.mark.nightly)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts tests for several processes, which take units in this order (``--no-loadscope-reorder``)."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank_of(item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Exempts modules and tests from garbage collection: they stay until the end, a third of their collection went into
    looking at them, and so would every full collection later. The first test reports what an import left unclosed."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # collecting took a fiftieth of all
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Exempts what is left when all fixtures of a file are gone, which caches keep to the end. Else, a test that
    collects in each of its steps took twenty times longer late in a run than alone."""
    yield
    if nextitem is not None and nextitem.path != item.path and gc.isenabled():
        gc.collect()
        gc.freeze()
