"""A node that keeps everything in a few dictionaries: operations of the control API without any service behind them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import trio

from chain.errors import Conflict, Environment, Invalid, NotFound, Refused, Remote
from engines.query.frames import END, HEAD, ROWS, frame
from odfd.control import wire
from odfd.control.board import BoardTasks, LogEvents, LogService, task_ref
from odfd.obs.events import EventLog
from odfd.obs.log_lines import LogLines
from odfd.runtime.tasks import Report, TaskBoard
from odfd.services.resources.pages import ResourcePage
from odfd.services.resources.views import with_state

FAULTS: dict[str, Callable[[], Exception]] = {
    "invalid": lambda: Invalid("bad", rule="r", hint="h", place="p:1"),
    "refused": lambda: Refused("no"),
    "remote": lambda: Remote("theirs"),
    "environment": lambda: Environment("ours"),
    "conflict": lambda: Conflict("moved"),
    "bug": lambda: RuntimeError("boom"),
    "group": lambda: ExceptionGroup("tasks", [ExceptionGroup("inner", [Remote("deep")])]),
}


class FakeNode:
    """Every service at once; datasets are named in ``views``; the name ``fault-KIND`` raises that fault."""

    def __init__(self, board: TaskBoard, log: EventLog) -> None:
        self.board, self.log_ = board, log
        self.views = {
            "nyc.flights": wire.DatasetView(
                name="nyc.flights", id="did:odf:fed01" + "a3" * 32, kind="root", blocks=15, records=336_776,
                watermark="2013-12-31T00:00:00Z", rely_on=wire.Reliance(blocks=15, fact="data"), peers=2,
                head="f1620" + "9c" * 32,
            )
        }  # fmt: skip
        self.uploads: dict[str, bytes] = {}
        self.asked: list[Any] = []
        self.release = trio.Event()
        self.about = self.datasets = self.flow = self.mirrors = self.networks = self.peers = self
        self.verification = self.trust = self.authority = self.rewriting = self.collection = self.resolving = self
        self.page = self.proving = self.policies = self.journal_recovery = self.visibility = self.queries = self
        self.tasks, self.events = BoardTasks(board), LogEvents(log)
        self.declarations = FakeDeclarations(self)
        self.lines = LogLines()
        self.log_lines = LogService(self.lines)

    async def status(self) -> wire.Status:
        return wire.Status(
            node_id="did:key:z6MkfakeNode", version="0.1.0", name="alice", datasets={"fresh": 1}, peers=2,
            listen=("/ip4/127.0.0.1/tcp/4150/p2p/12D3Koo",), disk=wire.DiskView(path="/x", total=10**12, free=10**11),
            engine=wire.EngineView(name="spark", digest="sha256:" + "5d" * 32, sandbox="none"),
        )  # fmt: skip

    async def netcheck(self) -> Sequence[wire.Probe]:
        return [wire.Probe(name="relays", result="warning", message="none named", hint="name one")]

    async def open(self) -> wire.PageAddress:
        return wire.PageAddress(url="http://127.0.0.1:7464/#token=secret&", seconds=120)

    async def settings(self) -> wire.SettingsView:
        return wire.SettingsView(toml='[node]\nname = "alice"  # default\n', file="/etc/odfd/odfd.toml")

    async def doctor(self) -> Sequence[wire.Probe]:
        return [
            wire.Probe(name="disk", result="ok", message="100 GB free"),
            wire.Probe(name="java", result="failed", message="no Java", hint="install one"),
        ]

    async def examine(self, *, deep: bool = True) -> AsyncIterator[wire.Probe]:
        for probe in await self.doctor():
            yield probe

    async def describe(self, ref: str, *, profile: bool) -> wire.DatasetDetail:
        return wire.DatasetDetail(dataset=await self.get(ref))

    async def get(self, ref: str) -> wire.DatasetView:
        if ref.startswith("fault-"):
            raise FAULTS[ref.removeprefix("fault-")]()
        if ref not in self.views:
            raise NotFound(f"there is no dataset {ref!r}", rule="reference", hint="odfctl get datasets lists them")
        return self.views[ref]

    async def answer(self, request: wire.QueryRequest, send: Callable[[bytes], Awaitable[None]]) -> None:
        self.asked.append(request)
        if request.sql.startswith("fault-"):
            raise FAULTS[request.sql.removeprefix("fault-")]()
        head = wire.QueryHead(pins=(), standing="data", standings=())
        await send(frame(HEAD, msgspec.json.encode(head)))
        await send(frame(ROWS, b"rows"))
        if request.sql == "late":
            raise Environment("it broke")
        if request.sql == "cut off":
            return
        await send(frame(END, msgspec.json.encode(wire.QueryEnd(rows=1))))

    async def delete(self, ref: str) -> wire.DatasetView:
        gone = await self.get(ref)
        del self.views[ref]
        return gone

    async def log(
        self, ref: str, kinds: Sequence[str], limit: int, before: str | None, epoch: int | None = None
    ) -> Sequence[wire.BlockView]:
        self.asked.append((ref, kinds, limit, before) if epoch is None else (ref, kinds, limit, before, epoch))
        return []

    async def tail(self, ref: str, limit: int) -> wire.Records:
        columns = (wire.Column(name="offset", type="Int64"), wire.Column(name="carrier", type="String"))
        return wire.Records(columns=columns, rows=((0, "UA"), (1, None))[:limit])

    async def stage(self, name: str, chunks: AsyncIterable[bytes]) -> wire.Upload:
        data = b""
        async for chunk in chunks:
            data += chunk
        self.uploads[name] = data
        return wire.Upload(id=name, name=name, size=len(data))

    async def set_watermark(self, ref: str, request: wire.WatermarkRequest) -> wire.TaskRef:
        async def work(_: Any) -> wire.PullResult:
            return wire.PullResult(items=(wire.PullItem(ref=ref, outcome="updated", blocks=1, message=request.time),))

        return task_ref(self.board.submit("watermark", ref, work))

    async def advance(self, ref: str) -> wire.TaskRef:
        async def work(_: Any) -> wire.PullResult:
            return wire.PullResult(items=(wire.PullItem(ref=ref, outcome="up-to-date", message="it is complete"),))

        return task_ref(self.board.submit("advance", ref, work))

    async def correct(self, ref: str, request: wire.CorrectRequest) -> wire.TaskRef:
        async def work(_: Any) -> wire.CorrectResult:
            before = {"offset": 0, "op": 0, **request.key}
            after = None if request.retract else {**before, "offset": 1, "op": 3, **request.values}
            return wire.CorrectResult(
                ref=ref, outcome="retracted" if request.retract else "corrected", dry_run=request.dry_run,
                before=before, after=after,
            )  # fmt: skip

        return task_ref(self.board.submit("correct", ref, work))

    async def ingest(self, ref: str, request: wire.IngestRequest) -> wire.TaskRef:
        async def work(report: Report) -> wire.PullResult:
            report.begin("reading", len(request.uploads), "files")
            size = sum(len(self.uploads[name]) for name in request.uploads)
            report.advance(len(request.uploads))
            return wire.PullResult(items=(wire.PullItem(ref=ref, outcome="updated", blocks=1, records=size),))

        return task_ref(self.board.submit("ingest", ref, work))

    async def pull(self, request: wire.PullRequest) -> wire.TaskRef:
        """Does not end before it is released; ``missing`` fails."""

        async def work(report: Report) -> wire.PullResult:
            report.begin("fetching", 10, "blocks")
            report.advance(3)
            await self.release.wait()
            if "missing" in request.refs:
                raise NotFound("there is no dataset 'missing'")
            return wire.PullResult(items=())

        return task_ref(self.board.submit("pull", ",".join(request.refs), work))

    async def rewrite(self, ref: str, request: wire.RewriteRequest) -> wire.TaskRef:
        async def work(_: Report) -> wire.RewriteResult:
            self.asked.append(request)
            return wire.RewriteResult(
                ref=ref, dataset_id="did:odf:x", action=request.action, outcome="rewritten", kept=2, before=5, blocks=3
            )

        return task_ref(self.board.submit("compact", ref, work))

    async def publish(self, request: wire.VisibilityRequest) -> Sequence[wire.VisibilityView]:
        return self._shown(request, published=True)

    async def unpublish(self, request: wire.VisibilityRequest) -> Sequence[wire.VisibilityView]:
        return self._shown(request, published=False)

    def _shown(self, request: wire.VisibilityRequest, *, published: bool) -> list[wire.VisibilityView]:
        self.asked.append(request)
        chosen = [view for name, view in self.views.items() if request.all or name in request.refs]
        notes = ("it is a note",)
        return [
            wire.VisibilityView(name=view.name, id=view.id, published=published, changed=True, notes=notes)
            for view in chosen
        ]

    async def sign_again(self, request: wire.SignRequest) -> wire.SigningView:
        if not request.alone:
            raise Refused("no peer could be asked", rule="trust.journal", hint="--alone")
        return wire.SigningView(begun=(wire.SignerView(key="did:key:z6Mk", said=3),))

    async def collect(self, request: wire.CollectRequest) -> wire.TaskRef:
        async def work(_: Report) -> wire.CollectResult:
            return wire.CollectResult(objects=1, bytes=7, waiting_bytes=9, dry_run=request.dry_run)

        return task_ref(self.board.submit("gc", "", work))

    async def follow(
        self, since: int | None, kinds: Sequence[str], log: str | None = None
    ) -> AsyncIterator[wire.EventView]:
        async for view in self.events.follow(since, kinds, log):
            yield view


class FakeDeclarations:
    """Datasets and tasks of a node as resources."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    async def get(self, word: str, name: str) -> wire.ResourceView:
        if word == "Dataset":
            found = await self._node.get(name)
            named, id_ = found.name, found.id
        else:
            await self._node.tasks.get(name)
            named = id_ = name
        headers = {"name": named, "id": id_, "createdAt": "2013-01-01T00:00:00Z"}
        return wire.ResourceView(
            type=word, name=named, id=id_, schema=f"https://example.org/v1alpha1/{word}",
            headers=headers, labels={}, generation=1, updated_at="2013-01-01T00:00:00Z",
        )  # fmt: skip

    async def page(self, word: str, *_: Any) -> ResourcePage:
        """A page of the tasks, the one list that is asked for."""
        views = [await self.get(word, each.id) for each in self._node.board.list()]
        return ResourcePage("f00-1", tuple(views), None, word)

    async def stated(self, views: Sequence[wire.ResourceView]) -> Sequence[wire.ResourceView]:
        tasks = self._node.tasks
        return [with_state(each, await tasks.get(each.name)) if each.type == "Task" else each for each in views]
