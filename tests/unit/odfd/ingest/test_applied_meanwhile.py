"""Manifests applied during a pull: rows stand after the source that they were fetched from, whenever it happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.data.parquet import open_slice
from chain.errors import Refused
from chain.ids import DatasetId
from chain.model.events import AddData, DatasetKind, DisablePollingSource, Seed, SetInfo, SetPollingSource
from chain.model.source import FetchFilesGlob, MergeAppend, ReadCsv
from chain.state import load_state
from odfd.ingest import trigger
from odfd.ingest.driver import ATTEMPTS, Ingested, SourceMoved, pull_root
from worlds.fake_engine import FakeEngine
from worlds.memory_store import MemoryChains, MemoryObjects

DATASET = DatasetId.from_public_key(bytes(32))
READ = ReadCsv(header=True, ddl_schema=("event_time TIMESTAMP, city STRING, population BIGINT",))
FILES = 3
ACTIONS = ("", "", "source 0", "source 1", "source 2", "info", "disable", "take")
"""What happens at each of the places where a pull waits for something. ``take``: somebody else commits what is next."""


class Meanwhile:
    """A pull, and what is done at each place of it."""

    def __init__(self, bench: Any, actions: list[str]) -> None:
        self.bench, self.actions, self.planned = bench, list(actions), tuple(actions)
        bench.append(None, [Seed(dataset_id=DATASET, dataset_kind=DatasetKind.ROOT), self.source(0)])
        for version in range(3):
            for number in range(FILES):
                name = f"v{version}-{number}"
                path = bench.folder / "source" / f"v{version}"
                path.mkdir(exist_ok=True)
                (path / f"{number}{version}.csv").write_text(
                    f"event_time,city,population\n2020-01-0{number + 1}T00:00:00Z,{name},1\n"
                )
        bench.before_commit = self.apply_next
        bench.engine = Engine(self.act)

    def source(self, version: int) -> SetPollingSource:
        path = str(self.bench.folder / "source" / f"v{version}" / "*.csv")
        return SetPollingSource(fetch=FetchFilesGlob(path=path), read=READ, merge=MergeAppend())

    async def act(self) -> None:
        if self.actions[:1] == ["take"]:
            # A pull of its own, as of an import that brings what another node of the same owner took.
            before, self.actions = self.actions[1:], []
            if load_state(self.bench.chains.chain(DATASET)).polling_source is not None:
                await pull_root(self.bench.deps, DATASET)
            self.actions = before
        else:
            self.apply_next()

    def apply_next(self) -> None:
        name, _, version = (self.actions.pop(0) if self.actions else "").partition(" ")
        state = load_state(self.bench.chains.chain(DATASET))
        if name == "source" and state.polling_source != self.source(int(version)):
            self.apply(self.source(int(version)))
        elif name == "info":
            self.apply(SetInfo(description=str(self.bench.clock)))
        elif name == "disable" and state.polling_source is not None:
            self.apply(DisablePollingSource())

    def apply(self, event: Any) -> None:
        self.bench.append(self.bench.chains.chain(DATASET).head(), [event], system_time=self.bench.tick())

    def rows(self) -> list[tuple[str | None, str]]:
        """Of each row in the chain, the folder of the source in force, and what the row says."""
        found: list[tuple[str | None, str]] = []
        inforce: SetPollingSource | None = None
        for event in self.bench.events():
            if isinstance(event, SetPollingSource):
                inforce = event
            elif isinstance(event, DisablePollingSource):
                inforce = None
            elif isinstance(event, AddData) and event.new_data is not None:
                with open_slice(self.bench.objects.path(event.new_data.physical_hash)) as source:
                    cities = source.read().column("city").to_pylist()
                assert inforce is None or isinstance(inforce.fetch, FetchFilesGlob)
                folder = None if inforce is None else Path(inforce.fetch.path).parent.name
                found += [(folder, city) for city in cities]
        return found


class Engine(FakeEngine):
    def __init__(self, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.act = act

    async def ingest(self, request: Any, on_progress: Any = lambda: None) -> Any:
        await self.act()
        answer = await super().ingest(request, on_progress)
        await self.act()
        return answer


def check(meanwhile: Meanwhile) -> None:
    rows = meanwhile.rows()
    assert all(city.startswith(f"{folder}-") for folder, city in rows), rows
    assert len(set(rows)) == len(rows), rows
    assert meanwhile.bench.leftovers() == []


async def pulled(meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = trigger.fetch

    async def around(*args: Any) -> Any:
        await meanwhile.act()
        found = await fetch(*args)
        await meanwhile.act()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(trigger, "fetch", around)
        try:
            await pull_root(meanwhile.bench.deps, DATASET)
        except Refused:
            assert load_state(meanwhile.bench.chains.chain(DATASET)).polling_source is None
        except SourceMoved:
            assert any(each.startswith(("source", "take", "disable")) for each in meanwhile.planned)
    check(meanwhile)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(ACTIONS), max_size=24))
def test_any_order_of_apply_fetch_plan_and_commit(
    tmp_path_factory: pytest.TempPathFactory, bench: Any, actions: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("bench")
    for name in ("staging", "source", "objects"):
        (folder / name).mkdir()
    objects = MemoryObjects(folder / "objects")
    fresh = type(bench)(MemoryChains(objects), objects, folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        meanwhile = Meanwhile(fresh, actions)
        trio.run(pulled, meanwhile, monkeypatch)
        # At rest it comes to an end.
        meanwhile.actions.clear()
        trio.run(pulled, meanwhile, monkeypatch)


@pytest.mark.parametrize("place", range(5))
async def test_a_new_source_is_fetched_from_at_once(bench: Any, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    meanwhile = Meanwhile(bench, [""] * place + ["source 1"])
    outcomes = []
    fetch = trigger.fetch

    async def around(*args: Any) -> Any:
        await meanwhile.act()
        found = await fetch(*args)
        await meanwhile.act()
        return found

    monkeypatch.setattr(trigger, "fetch", around)
    outcomes.append(await pull_root(bench.deps, DATASET))
    check(meanwhile)
    assert isinstance(outcomes[0], Ingested)
    assert outcomes[0].rows == outcomes[0].files == len(meanwhile.rows()) == FILES
    assert [folder for folder, _ in meanwhile.rows()] == ["v1"] * FILES


async def test_a_source_that_never_rests_is_given_up(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile = Meanwhile(bench, ["", "source 1", "source 0"] * 40)
    fetches = []
    fetch = trigger.fetch
    monkeypatch.setattr(trigger, "fetch", lambda *args: (fetches.append(1), fetch(*args))[1])
    bench.engine.act = trio.lowlevel.checkpoint
    bench.before_commit = lambda: meanwhile.apply(meanwhile.source(len(fetches) % 2))
    with pytest.raises(SourceMoved, match="was changed while it was fetched"):
        await pull_root(bench.deps, DATASET)
    assert len(fetches) == ATTEMPTS
    assert meanwhile.rows() == []


async def test_paths_start_from_the_folder_of_the_manifest_in_force(bench: Any) -> None:
    meanwhile = Meanwhile(bench, [])
    bases = {"old": bench.folder / "source" / "v0", "new": bench.folder / "source" / "v2"}
    base = ["old"]
    relative = [SetPollingSource(fetch=FetchFilesGlob(path=f"{some}*.csv"), read=READ, merge=MergeAppend())
                for some in ("", "./")]  # fmt: skip
    meanwhile.apply(relative[0])
    deps = bench.deps
    deps.base = lambda _: bases[base[0]]

    def before() -> None:
        bench.before_commit = lambda: None
        meanwhile.apply(relative[1])
        base[0] = "new"

    bench.before_commit = before
    await pull_root(deps, DATASET)
    assert {city[:2] for _, city in meanwhile.rows()} == {"v2"}
