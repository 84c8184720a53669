"""Pages to look at: of a node that met a lie, and of one that shows whatever strangers write, a thousand times."""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import trio

from chain.errors import Fault
from config import model
from engines.query.frames import COLUMNS, END, HEAD, PLAIN, frame
from odfd.api.routes import application
from odfd.control import wire
from odfd.page.server import PageServer
from odfd.runtime.supervision import Life
from odfd.services.resources.pages import ResourcePage
from odfd.services.resources.views import with_state
from worlds import node_world
from worlds.eventually import PATIENCE

CITIES: Final = """kind: DatasetSnapshot
version: 1
content:
  name: austria.cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: '*.csv', order: ByName}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {kind: Append}
    - kind: SetInfo
      description: People living in Austrian cities, counted again and again.
      keywords: [austria, population]
    - kind: SetLicense
      shortName: CC-BY-4.0
      name: Creative Commons Attribution 4.0
      spdxId: CC-BY-4.0
      websiteUrl: https://creativecommons.org/licenses/by/4.0/
    - kind: SetAttachments
      attachments:
        kind: Embedded
        items:
          - path: README.md
            content: |
              # Cities of Austria

              Each row is a **count** of the people of a city, at a day.

              * `event_time`: the day of the count
              * `population`: how many lived there

              | city | since |
              |---|---|
              | Graz | 2024 |
              | Linz | 2024 |

              See [the statistics](https://www.statistik.at/) for more.
"""
TOWNS: Final = """kind: DatasetSnapshot
version: 1
content:
  name: austria.towns
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs:
        - {datasetRef: austria.cities, alias: cities}
      transform:
        kind: Sql
        engine: spark
        query: select * from cities
"""
BAD: Final = "austria.towns.bad"
UNHELD: Final = "austria.places"
"""Announced by Alice, and not mirrored by Bob."""
ALIKE: Final = "austria.p1aces"
"""Likewise, by a name that looks like the other one's."""
NAMES: Final = ("austria.cities", "austria.towns", BAD)
OWN: Final = 120
"""Rows of Bob's own dataset."""
YEARS: Final = (2021, 2022, 2023, 2024)
ATTESTS: Final = model.Policy(profile="validator", publish=model.Publish(attest=True))
MANY: Final = 1000
ATTACKS: Final = (
    "<script>window.harmed='script'</script>",
    "<img src=x onerror=\"window.harmed='img'\">",
    "<svg/onload=window.harmed='svg'>",
    '"><iframe srcdoc="<script>parent.harmed=\'frame\'</script>">',
    "javascript:window.harmed='link'",
    "${window.harmed='template'} {{constructor.constructor('window.harmed=1')()}}",
    "</title><style>*{display:none}</style><base href=//evil.example>",
    "\u202egnp.exe\u202c \u2066hidden\u2069 \u200bnothing\x1b[2Jx",
    "__proto__",
    "constructor",
    "%2e%2e/%2e%2e/node/v1alpha1/tasks",
    "'; DROP TABLE x; --",
    "#/trust?q=1",
    "a" * 3000,
    "\U0001f600",
)
"""What strangers may write into names, descriptions, rows, messages."""
README: Final = "\n\n".join(
    (
        "# Hello <script>window.harmed='readme'</script>",
        "<img src=x onerror=window.harmed='html'>",
        "[a](javascript:window.harmed='md') [b](data:text/html,<script>harmed=1</script>) [c](file:///etc/passwd)",
        "![x](https://evil.example/track.png) <https://evil.example/x> [ok](https://example.org/)",
        "```html\n<script>window.harmed='code'</script>\n```",
        "> " * 60 + "deep",
        "&lt;script&gt;",
        "|a|b|\n|-|-|\n|<b>x</b>|y|",
        "- [ ] <input autofocus onfocus=window.harmed='input'>",
        "<style>*{display:none}</style>",
        "[x]: javascript:harmed",
    )
)
LOUD: Final = " ".join(ATTACKS[:8])


class ShownNode:
    """A page, served in a loop of its own; ``address()`` gives one that is good once."""

    def __init__(self, page: PageServer, token: trio.lowlevel.TrioToken, more: Any = None) -> None:
        self.page, self._token, self.more = page, token, more

    def address(self) -> str:
        return trio.from_thread.run(self.page.open, trio_token=self._token).url

    def told(self, service: str, operation: str, *words: str) -> Any:
        """What the node itself says."""
        return trio.from_thread.run(getattr(getattr(self.more.api, service), operation), *words, trio_token=self._token)

    def does(self, what: str, *words: str) -> Any:
        """What the node is told to do, done."""
        return trio.from_thread.run(getattr(self.more, what), *words, trio_token=self._token)


@contextmanager
def met_a_lie(folder: Path) -> Iterator[ShownNode]:
    """Bob mirrors what Alice derives, and found where she lied."""
    with _in_a_thread(partial(_meet_a_lie, folder)) as shown:
        yield shown


@contextmanager
def of_strangers() -> Iterator[ShownNode]:
    with _in_a_thread(_show_strangers) as shown:
        yield shown


@contextmanager
def _in_a_thread(run: Any) -> Iterator[ShownNode]:
    ready, found, failed = threading.Event(), [], []

    async def serve() -> None:
        stop = trio.Event()
        token = trio.lowlevel.current_trio_token()
        async with run() as (page, more):
            found.append((ShownNode(page, token, more), stop, token))
            ready.set()
            await stop.wait()

    def whole() -> None:
        try:
            trio.run(serve)
        except BaseException as error:  # noqa: BLE001  told to whoever waits
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=whole, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    if failed:
        raise failed[0]
    shown, stop, token = found[0]
    try:
        yield shown
    finally:
        token.run_sync_soon(stop.set)
        thread.join(PATIENCE)
    if failed:
        raise failed[0]


class _Meeting:
    """``async with``: the whole world."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __aenter__(self) -> tuple[PageServer, Any]:
        self.world = node_world.World(self._folder)
        self._alice, self._bob = self.world.running("alice"), self.world.running("bob", ATTESTS)
        alice, bob = await self._alice.__aenter__(), await self._bob.__aenter__()
        await bob.apply("$schema: Network\nheaders: {name: wires}\nspec: {bootstrap: []}\n")
        await _publish(self.world, alice)
        for name in NAMES:
            await bob.mirror(alice.dataset(name), name)
        await bob.heard("verdict.mismatch")
        await _own(self.world, bob)
        return bob.api.page, bob

    async def __aexit__(self, *why: Any) -> None:
        await self._bob.__aexit__(*why)
        await self._alice.__aexit__(*why)
        self.world.close()


def _meet_a_lie(folder: Path) -> _Meeting:
    return _Meeting(folder)


async def _publish(world: Any, alice: Any) -> None:
    _year(world, "alice", YEARS[0])
    await alice.apply(CITIES, TOWNS, TOWNS.replace("austria.towns", BAD, 1))
    await alice.pull()
    for number, year in enumerate(YEARS[1:]):
        _year(world, "alice", year)
        await alice.pull("austria.cities")
        await alice.pull("austria.towns")
        lies = number == len(YEARS) - 2
        alice.engine.wrong = partial(node_world.add_to_first, "population", 100_000) if lies else None
        await alice.pull(BAD)
    for name in (UNHELD, ALIKE):
        await alice.apply(CITIES.replace("austria.cities", name))
        await alice.pull(name)
    await world.spread(alice, *NAMES, UNHELD, ALIKE)


async def _own(world: Any, bob: Any) -> None:
    """Bob has a dataset of his own, with rows for several pages, and a label."""
    world.write("bob", "villages.csv", *(f"2020-01-01T00:00:00Z,Village {number},{number}" for number in range(OWN)))
    await bob.apply(CITIES.replace("austria.cities", "bob.cities"))
    await bob.pull("bob.cities")
    await bob.api.declarations.label("Dataset", "bob.cities", wire.LabelRequest(labels={"owner": "bob"}))


def _year(world: Any, name: str, year: int) -> None:
    rows = (("Graz", 291_000), ("Linz", 206_000), ("Salzburg", 155_000), ("Wels", 62_000))
    lines = [
        f"{year}-01-0{day}T00:00:00Z,{city},{people + 1370 * (year - 2020)}"
        for day, (city, people) in enumerate(rows, 1)
    ]
    world.write(name, f"{year}.csv", *lines)


class _Strangers:
    async def __aenter__(self) -> tuple[PageServer, Any]:
        self._nursery = trio.open_nursery()
        nursery = await self._nursery.__aenter__()
        services: Any = strangers()
        api = application(services, node_world.Lines())
        page = PageServer(model.Http(), partial(secrets.token_urlsafe, 32), node_world.Lines(), lambda: api)
        life = Life()
        nursery.start_soon(page.run, life)
        await life.wait_ready()
        self._cancel = nursery.cancel_scope
        return page, services

    async def __aexit__(self, *why: Any) -> None:
        self._cancel.cancel()
        await self._nursery.__aexit__(None, None, None)


def _show_strangers() -> _Strangers:
    return _Strangers()


def strangers() -> SimpleNamespace:
    """Services whose every text is somebody else's; more datasets than a page shows."""
    views = [
        *(_view(attack, number) for number, attack in enumerate(ATTACKS)),
        *(_view(f"weather.station-{number:04}", number) for number in range(MANY - len(ATTACKS))),
    ]
    asked: list[Any] = []

    def says(value: Any) -> Any:
        async def answer(*words: Any, **more: Any) -> Any:
            asked.append((words, more))
            return value

        return answer

    return SimpleNamespace(
        asked=asked,
        about=SimpleNamespace(
            status=says(_status()),
            doctor=says([wire.Probe(name=LOUD, result="failed", message=LOUD, hint=LOUD)]),
            settings=says(wire.SettingsView(toml=LOUD, file=LOUD)),
        ),
        datasets=SimpleNamespace(describe=says(_detail(views[0])), log=_log, block=says(_block()), tail=says(_rows())),
        trust=SimpleNamespace(show=says(_trust())),
        lineage=SimpleNamespace(graph=says(_graph())),
        tasks=SimpleNamespace(get=says(_task())),
        declarations=_Declared(
            {
                "Flow": [_flow(name) for name in ATTACKS],
                "Task": [
                    _stated("Task", "t1", {"kind": LOUD}, _task()),
                    _stated("Task", "t2", {"kind": LOUD}, _found()),
                ],
                "Network": [_network()],
                "Peer": [_peer(name) for name in ATTACKS],
                "Mirror": [_mirror(name, number) for number, name in enumerate(ATTACKS)],
                "Dataset": [_dataset(view) for view in views],
            }
        ),
        search=SimpleNamespace(
            search=says(wire.SearchView(found=tuple(_card(name) for name in ATTACKS), more=3, cards=MANY)),
            card=says(_card(ATTACKS[0])),
        ),
        policies=SimpleNamespace(policy=says(_policy())),
        peers=SimpleNamespace(holders=says([wire.PeerHoldings(peer_id=name, names=ATTACKS) for name in ATTACKS])),
        queries=SimpleNamespace(answer=_answer),
        events=SimpleNamespace(kept=_kept, follow=_follow),
        flow=SimpleNamespace(pull=says(wire.TaskRef(id="t1", kind="pull", target=LOUD))),
    )


def _id(number: int) -> str:
    return f"did:odf:fed01{number:064x}"


def _view(name: str, number: int) -> wire.DatasetView:
    states: Sequence[Any] = ("fresh", "stale", "syncing", "refuted") if name in ATTACKS else ("fresh", "fresh", "stale")
    return wire.DatasetView(
        name=name,
        id=_id(number),
        kind="root",
        blocks=9,
        records=10 * number,
        bytes=number << 12,
        head="f1620" + "0" * 64,
        watermark="2026-01-01T00:00:00Z",
        state=states[number % len(states)],
        rely_on=wire.Reliance(blocks=3, fact=LOUD if name in ATTACKS else "data"),
        peers=1,
    )


def _status() -> wire.Status:
    return wire.Status(
        node_id="did:key:z6Mk",
        version="1",
        name=ATTACKS[0],
        networks=(ATTACKS[1],),
        listen=(LOUD,),
        http=(LOUD,),
        flows=wire.FlowCounts(failing={ATTACKS[1]: 3, "__proto__": 2}),
    )


def _detail(view: wire.DatasetView) -> wire.DatasetDetail:
    columns = tuple(
        wire.ColumnProfile(name=name, type=LOUD, comment=LOUD, minimum=name, maximum={name: [name]}) for name in ATTACKS
    )
    return wire.DatasetDetail(
        dataset=view,
        description=LOUD,
        keywords=ATTACKS,
        inputs=ATTACKS,
        source={name: name for name in ATTACKS},
        license=wire.License(short_name=LOUD, name=LOUD, website_url="javascript:window.harmed='license'"),
        attachments=(
            wire.Attachment(path="README.md", content=README),
            *(wire.Attachment(path=one, content=LOUD) for one in ATTACKS),
        ),
        profile=wire.DataProfile(columns=columns, slices=1, records=3, message=LOUD),
    )


async def _log(ref: str, kinds: Sequence[str], limit: int, before: str | None, epoch: int | None = None) -> Any:
    def block(number: int) -> wire.BlockView:
        return wire.BlockView(
            sequence_number=number,
            hash=f"f1620{number:064}",
            system_time="2026-01-01T00:00:00Z",
            event="SetInfo",
            summary=ATTACKS[number % 9],
            records=number,
            data_size=number,
        )

    return [block(number) for number in reversed(range(9)) if before is None or number < int(before[5:])][:limit]


def _block() -> wire.BlockDetail:
    return wire.BlockDetail(
        hash="f1620", manifest_version=1, size=9, manifest={"content": {"event": {name: name for name in ATTACKS}}}
    )


def _rows() -> wire.Records:
    columns = tuple(wire.Column(name=name, type="String") for name in ("offset", "op", *ATTACKS))
    return wire.Records(columns=columns, rows=((7, 0, *ATTACKS), (8, 0, *ATTACKS)))


def _trust() -> wire.TrustView:
    def said(who: str) -> wire.AttestationView:
        return wire.AttestationView(
            validator=who, group=who, spans=("reproduced 0-2", f"mismatch at #3 ({LOUD})", LOUD), engine=LOUD
        )

    cells = tuple(
        wire.CellView(block=3, row=1, column=name, published=name, computed=name, context={name: name})
        for name in ATTACKS
    )
    head = wire.HeadView(signer=LOUD, epoch=0, blocks=9, hash=LOUD, issued_at=LOUD, expires_at=LOUD)
    found = wire.EvidenceView(
        id=LOUD,
        kind="mismatch",
        dataset=LOUD,
        block=3,
        bundle=LOUD,
        message=LOUD,
        cells=cells,
        kept=False,
        sides=tuple(wire.SideView(block=LOUD, head=head, held=each) for each in (True, False)),
    )
    return wire.TrustView(
        ref=LOUD,
        dataset_id=LOUD,
        blocks=9,
        head=LOUD,
        reach=wire.Reach(use=3, serve=3),
        why=wire.Why(rule=LOUD, block=3, message=LOUD),
        facts=wire.TrustFacts(met=LOUD, attested=wire.Attested(have=1, needed=2)),
        attestations=tuple(map(said, ATTACKS)),
        dissent=(said(LOUD),),
        evidence=(found,),
        choices=(wire.ChoiceView(hash=LOUD, message=LOUD),),
        unsigned=LOUD,
        heads=(head,),
        past=tuple(wire.IncidentView(at=LOUD, kind=kind, message=LOUD) for kind in ("damage.found", LOUD)),
        witnesses=(wire.WitnessView(witness=LOUD, name=LOUD, counts=True, trouble=LOUD),),
    )


def _graph() -> wire.LineageGraph:
    first = wire.LineageInput(ref=ATTACKS[0], id="0", alias=LOUD)
    nodes = [
        wire.LineageNode(
            ref=name,
            id=str(number),
            relation="self" if not number else "upstream",
            kind="root",
            source=LOUD,
            inputs=(first,),
        )
        for number, name in enumerate(ATTACKS)
    ]
    return wire.LineageGraph(ref=LOUD, id="0", nodes=tuple(nodes))


def _found() -> wire.TaskState:
    return wire.TaskState(kind="verify", target=LOUD, state="done", finding=LOUD)


def _task() -> wire.TaskState:
    fault = wire.Problem.of(Fault(LOUD, rule="x", hint=LOUD))
    return wire.TaskState(kind=ATTACKS[0], target=LOUD, state="failed", unit=LOUD, message=LOUD, fault=fault)


def _flow(name: str) -> wire.ResourceView:
    state = wire.FlowState(when=LOUD, state="waiting", message=LOUD, outcome=LOUD)  # type: ignore[arg-type]
    return _stated("Flow", name, {"target": f"Dataset:{name}"}, state)


class _Declared:
    """The resources of strangers, by type."""

    def __init__(self, views: dict[str, list[wire.ResourceView]]) -> None:
        self._views = views

    async def page(self, word: str, *_: Any) -> ResourcePage:
        return ResourcePage("f00-1", tuple(self._views[word]), None, word)

    async def get(self, word: str, _: str) -> wire.ResourceView:
        return self._views[word][0]

    async def stated(self, views: Any) -> Any:
        return views


def _stated(type_: str, name: str, spec: dict[str, Any], state: wire.Value, **labels: str) -> wire.ResourceView:
    headers = {"id": name, "name": name, "labels": labels}
    view = wire.ResourceView(
        type=type_, name=name, schema=type_, headers=headers, spec=spec, id=name, labels={}, generation=1, updated_at=""
    )
    return with_state(view, state)


def _dataset(view: wire.DatasetView) -> wire.ResourceView:
    labels = dict.fromkeys(ATTACKS[:4], LOUD) if view.name in ATTACKS else {}
    return _stated("Dataset", view.name, {"did": view.id}, view, **labels)


def _peer(name: str) -> wire.ResourceView:
    state = wire.PeerState(name=f"{name} ", alike=2, addresses=(LOUD,), connected=True)
    return _stated("Peer", name, {"peerId": name, "blocked": False}, state)


def _mirror(name: str, number: int) -> wire.ResourceView:
    node = wire.PeerName(peer_id=name, name=LOUD, alike=1)
    state = wire.MirrorState(state="failed", message=LOUD, contact=_contact(), node=node)
    return _stated("Mirror", name, {"source": _id(number)}, state)


def _network() -> wire.ResourceView:
    datasets = tuple(wire.Announced(id=name, name=name, blocks=1, contact=_contact()) for name in ATTACKS)
    contact = wire.NetworkContact(by="invitation", invited_by=LOUD, means=LOUD, met={"first-use": 2}, advice=(LOUD,))
    return _stated("Network", ATTACKS[1], {"bootstrap": []}, wire.NetworkState(datasets=datasets, contact=contact))


def _card(name: str) -> wire.CardView:
    """Also of an id that is none, and of letters that look like others."""
    return wire.CardView(
        id=name,
        name=name + "p\u0430ypal",
        local_name=name if name == ATTACKS[-1] else None,
        publisher=LOUD,
        author=LOUD,
        kind=LOUD,
        standing=LOUD,
        peers=3,
        places=2,
        namesakes=2,
        description=LOUD,
        keywords=ATTACKS,
        license=LOUD,
        license_url="javascript:window.harmed='license'",
        columns=tuple(wire.CardColumn(name=each, type=LOUD) for each in ATTACKS),
        more_columns=1,
        sample=wire.CardRows(columns=ATTACKS, rows=(ATTACKS, (LOUD, *ATTACKS[1:-1], None)), left_out=2),
        words=wire.CardWords(
            title=LOUD, place=LOUD, area=wire.CardArea(west=-1, south=2, east=3, north=4), frequency=LOUD
        ),
        first_event=LOUD,
        last_event=LOUD,
        update_interval=60,
        inputs=ATTACKS,
        created_at=LOUD,
        updated_at=LOUD,
        watermark=LOUD,
        signed_at=LOUD,
        expires_at=LOUD,
    )


def _policy() -> wire.PolicyView:
    rule = wire.DatasetRuleView(name=LOUD, datasets=("%", "(", "[^"), use=LOUD, serve=LOUD)
    settings = {"quorum": 2, "witnesses": {LOUD: LOUD}}
    return wire.PolicyView(
        profile=LOUD, use=LOUD, serve=LOUD, groups={LOUD: (LOUD,)}, settings=settings, rules=(rule,), notes=(LOUD,)
    )


def _contact() -> wire.Contact:
    return wire.Contact(by="first-use", means=LOUD, advice=LOUD)


def _event(number: int, name: str) -> wire.EventView:
    return wire.EventView(
        sequence=number, time="2026-01-01T00:00:00Z", kind=name, subject=name, message=LOUD, data={name: name}
    )


async def _kept(_: Any) -> list[wire.EventView]:
    return [_event(number, name) for number, name in enumerate(ATTACKS)]


async def _follow(since: int | None, kinds: Sequence[str], _log: str | None = None) -> AsyncIterator[wire.EventView]:
    yield _event(99, LOUD)
    await trio.sleep_forever()


async def _answer(request: wire.QueryRequest, send: Any) -> None:
    pins = (wire.Pin(name=LOUD, id=LOUD, block=LOUD, sequence_number=1),)
    head = wire.QueryHead(
        pins=pins, standing=LOUD, standings=(wire.ReadStanding(name=LOUD, fact=LOUD, blocks=1, of=2),), remarks=(LOUD,)
    )
    await send(frame(HEAD, msgspec.json.encode(head)))
    await send(frame(COLUMNS, msgspec.json.encode([(name, "string") for name in ("n", *ATTACKS)])))
    await send(frame(PLAIN, msgspec.json.encode([(1, *ATTACKS), (2, *ATTACKS)])))
    await send(frame(END, msgspec.json.encode(wire.QueryEnd(rows=2))))
