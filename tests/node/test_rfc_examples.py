"""The examples of RFC-018 and RFC-019, of their repository and of their texts, on running nodes."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from chain.errors import Fault, Invalid, Refused
from chain.instant import SECOND
from chain.state import load_state
from config.model import Webhooks
from odfd.control import wire
from odfd.services.volumes.volume_paths import MARK
from worlds.accounts_world import BOB, DATASET, settled
from worlds.asking import ask
from worlds.eventually import PATIENCE, became
from worlds.flow_world import flow_of
from worlds.http_served import HttpServer, serving
from worlds.node_world import Node, World
from worlds.s3_server import new_bucket, s3_server

# The examples of RFC-018's repository, and what its text writes otherwise, on a running node.


GOLDEN = Path(__file__).parents[1] / "golden" / "rfc018"
REFUSED = {
    "sink-webhook-dataset-events.webhook-target-canonical": "a view of a resource",
    "source-polling-url.proj-latest": "latest is a function of kamu's engine",
    "source-push-http.dataset-aggregates": "its engine is flink",
}
GROUPS = sorted({path.stem.partition(".")[0] for path in GOLDEN.glob("*.yaml")})
SEALED = re.compile(r"(\w+):[^\n]*\n\s+value: <jwe>\s+contentEncoding: jwe")
"""A placeholder, for which the test writes a value as the document says that plain ones may be written."""
TEXT = """$schema: Flow
headers: {name: periodic-compaction}
spec:
  target:
    type: Dataset
    name: org.opendatafabric.%
    labels: {datasetKind: Root, env: prod}
  triggers:
  - kind: Cron
    cron: "@daily"
  steps:
  - kind: Compaction
    maxSliceSize: 100MiB
    maxSliceRecords: 10_000
"""
CHECKS = """$schema: Flow
headers: {{name: checks}}
spec:
  target: {{type: Dataset, account: {{name: {}}}, name: temps}}
  triggers: [{{kind: Schedule, cron: "@daily"}}]
  tasks: [{{kind: Verify}}]
"""
ACCOUNT = "$schema: Account\nheaders: {name: sergiimk}\nspec: {email: s@example.com}\n"
SLICES = "params.targetSliceRecords is passed over: each fetch becomes a slice, and a Compaction merges them"
RENAMED = ("spec.preprocess: engine datafusion is read as spark, as the query only names columns",)
WARNED = {
    "auth-accounts-permissions": {
        "spec.password is passed over, and kept nowhere: an Account is known by its unixCallers (odfctl docs access)"
    },
    "flow-compact": {
        "spec.target.labels.kind is read as datasetKind, the label that the node gives",
        "spec.tasks[0].params is read as fields of the task",
    },
    "sink-webhook-dataset-events": {
        "spec.tasks[0].target is read as endpoint",
    },
    "source-polling-url": {
        f"spec.tasks[0].{SLICES}",
        *RENAMED,
        "spec.merge.primaryKey: date is read as event_time, its name after preprocess",
        *(
            f"m2.yaml:8: no {kind} 'ca.bankofcanada' here; it begins when that is here"
            for kind in ("secretset", "variableset")
        ),
    },
    "source-push-http": {
        f"spec.tasks[0].{SLICES}",
        "spec.triggers[0]: kind: Source is read as kind: SourceUpdated",
        *RENAMED,
    },
}


def examples(group: str) -> list[str]:
    found = sorted(path for path in GOLDEN.glob(f"{group}.*.yaml") if path.stem not in REFUSED)
    return [SEALED.sub(rf"\1: {KEY}", path.read_text()) for path in found]


@pytest.mark.parametrize("group", GROUPS)
async def test_the_examples_of_the_rfc_apply_and_are_unchanged_when_they_come_again(world: World, group: str) -> None:
    texts = examples(group)
    async with world.running("alice") as alice:
        await alice.apply(ACCOUNT)
        done = await alice.apply(*texts)
        assert {each.action for each in done.items} == {"created"}
        assert {text for each in done.items for text in each.warnings} == WARNED.get(group, set())
        await alice.parts.reconciler.wait_settled()
        again = await alice.apply(*texts)
        assert {each.action for each in again.items} == {"unchanged"}
        state = b"".join(each.read_bytes() for each in alice.home.directory.glob("state.db*"))
        assert b"swordfish" not in state


async def test_the_dialect_of_the_text_is_read_with_a_warning_for_each_word(world: World) -> None:
    async with world.running("alice") as alice:
        (item,) = (await alice.apply(TEXT)).items
        assert (item.action, set(item.warnings)) == (
            "created",
            {
                "spec.steps is read as tasks",
                "spec.triggers[0]: kind: Cron is read as kind: Schedule",
                "spec.tasks[0].maxSliceRecords: 10_000 is read as 10000",
            },
        )
        kept = (await alice.api.declarations.get("flow", "periodic-compaction")).spec
        labels = {"datasetKind": "Root", "env": "prod"}
        assert kept["target"] == {"type": "Dataset", "name": "org.opendatafabric.%", "labels": labels}
        assert kept["tasks"] == [{"kind": "Compaction", "maxSliceSize": "100MiB", "maxSliceRecords": 10000}]


async def test_a_dataset_that_is_named_with_its_account_is_found_if_it_is_of_that_one(world: World) -> None:
    owned = "$schema: Dataset\nheaders: {name: temps, account: sergiimk}\nspec: {kind: Root, metadata: []}\n"
    async with world.running("alice") as alice:
        done = await alice.apply(ACCOUNT, owned, CHECKS.format("sergiimk"))
        assert {(each.action, each.warnings) for each in done.items} == {("created", ())}
        await alice.parts.reconciler.wait_settled()
        view = await alice.api.declarations.get("flow", "checks")
        assert (view.spec["target"], view.status["phase"]) == ("Dataset:sergiimk/temps", "Ready")
        assert (await flow_of(alice, "checks")).target == "temps"
        await alice.api.declarations.delete("Flow", "checks")
        await alice.apply(CHECKS.format("nobody"))
        await alice.parts.reconciler.wait_settled()
        view = await alice.api.declarations.get("flow", "checks")
        assert (view.status["phase"], view.status["code"]) == ("Failed", "unresolved-reference")


RATES = b"date,FXAUDCAD,FXUSDCAD\n2024-01-02T00:00:00Z,0.89,1.33\n2024-01-03T00:00:00Z,0.90,1.34\n"
VALUES = (
    "$schema: SecretSet\nheaders: {name: ca.bankofcanada}\nspec: {secrets: {apiKey: sesame}}\n",
    "$schema: VariableSet\nheaders: {name: ca.bankofcanada}\nspec: {variables: {startDate: '2024'}}\n",
)
"""What the example's Source refers to, and no example declares."""
KEY = "sesame, sesame, and sesame again"
INSIDE = {"webhooks": Webhooks(inside=("127.0.0.0/8",))}


class Outside(http.server.BaseHTTPRequestHandler):
    """The bank, and the receiver of calls."""

    server: Any

    def do_HEAD(self) -> None:
        self.send_error(405)

    def do_GET(self) -> None:
        is_right = (self.headers["Authorization"], self.path) == ("Bearer sesame", "/fx?start_date=2024")
        self._answer(200 if is_right else 401, RATES if is_right else b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append((self.path, self.headers["webhook-id"], json.loads(body)))
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def outside() -> Iterator[Any]:
    made: Any = HttpServer(Outside)
    made.calls = []
    with serving(made):
        yield made


def of_here(group: str, outside: Any) -> list[str]:
    """Returns the examples with addresses of here, and values in place of ``<jwe>``."""
    texts = [
        SEALED.sub(rf"\1: {KEY}", path.read_text())
        for path in sorted(GOLDEN.glob(f"{group}.*.yaml"))
        if path.stem not in REFUSED
    ]
    for there, here in (
        ("https://www.bankofcanada.ca/valet/observations/group/FX_RATES_DAILY/csv", f"{outside.url}/fx"),
        ("https://example.com/hook/", f"{outside.url}/hook/"),
    ):
        texts = [each.replace(there, here) for each in texts]
    # No file of columns can have a decimal with more digits after the point than in all: the examples exchange the two.
    return [re.sub(r"scale: 19(\s+)precision: 6", r"scale: 6\1precision: 19", each) for each in texts]


async def check_ready(node: Node) -> None:
    views: Sequence[wire.ResourceView] = ()
    with trio.fail_after(PATIENCE):
        # A flow may begin its next run after all was settled, and before it is listed.
        while not views or any(each.type != "Task" and each.status["phase"] == "Reconciling" for each in views):
            await node.parts.reconciler.wait_settled()
            views = await node.api.declarations.list(None, None)
    for view in views:
        assert view.type == "Task" or view.status["phase"] == "Ready", (view.type, view.name, view.status)


def records(node: Node, name: str) -> int:
    offset = load_state(node.home.chains.chain(node.dataset(name))).last_offset
    return 0 if offset is None else offset + 1


@pytest.mark.parametrize(
    "group", ["auth-accounts-permissions", "flow-compact", "flow-gc", "labels-annotations", "secrets-and-variables"]
)
async def test_the_examples_are_ready(world: World, outside: Any, group: str) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ACCOUNT)
        await alice.apply(*of_here(group, outside))
        await check_ready(alice)


async def test_the_polled_example_is_ready_and_its_data_arrives_when_it_is_time(world: World, outside: Any) -> None:
    async with world.running("alice") as alice:
        done = await alice.apply(*VALUES, *of_here("source-polling-url", outside))
        assert {text for each in done.items for text in each.warnings} == {
            f"spec.tasks[0].{SLICES}",
            *RENAMED,
            "spec.merge.primaryKey: date is read as event_time, its name after preprocess",
        }
        await check_ready(alice)
        alice.clock.instant += 1800 * SECOND
        alice.parts.flows.loop.poke()
        await became(lambda: records(alice, "ca.bankofcanada") == 2)


async def test_the_pushed_example_is_ready_and_its_data_arrives(world: World, outside: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(*of_here("source-push-http", outside))
        await check_ready(alice)
        sent = [{"ts": f"2024-01-01T00:{n // 60:02}:{n % 60:02}Z", "temp": n / 2} for n in range(100)]
        lines = "\n".join(map(json.dumps, sent)).encode()
        status, answer = await ask(alice, "POST", "/source/v1alpha1/sources/sensor.temp.http/ingest", body=lines)
        assert status in (200, 202), answer
        await became(lambda: records(alice, "sensor.temp") == 100)


async def test_the_webhook_of_the_example_is_ready_and_called_once_for_each_change(world: World, outside: Any) -> None:
    async with world.running("alice", **INSIDE) as alice:
        texts = of_here("sink-webhook-dataset-events", outside)
        await alice.apply(*texts)
        await check_ready(alice)
        (dataset,) = [each for each in texts if "kind: Root" in each]

        def told() -> bool:
            """Whether a call told of the present head; each look is after the flow's pause between two runs."""
            head = alice.home.chains.chain(alice.dataset("ca.bankofcanada")).head()
            alice.clock.instant += 60 * SECOND
            alice.parts.flows.loop.poke()
            return any(body["data"]["newRef"]["hash"] == str(head.hash) for _, _, body in outside.calls)

        for about in ("first", "second"):
            change = f"    - kind: SetInfo\n      description: {about}\n"
            await alice.apply(dataset.replace("    - kind: SetLicense", f"{change}    - kind: SetLicense"))
            await became(told)
        heads = [body["data"]["newRef"]["sequenceNumber"] for _, _, body in outside.calls]
        assert heads == sorted(set(heads))
        assert len(heads) >= 2
        assert {path for path, _, _ in outside.calls} == {"/hook/"}
        assert len({id_ for _, id_, _ in outside.calls}) == len(heads)


@pytest.mark.slow
async def test_the_volume_of_the_example_is_ready_and_takes_the_data_of_its_dataset(world: World) -> None:
    texts = [SEALED.sub(r"\1: AKIAHOUSE", path.read_text()) for path in sorted(GOLDEN.glob("storage-volume.*.yaml"))]

    async def rows() -> Any:
        """More than the few bytes that stay in the database."""
        lines = [f"2024-01-01T00:00:00Z,{hashlib.sha256(b'%d' % each).hexdigest()}" for each in range(5_000)]
        yield "\n".join(["event_time,city", *lines, ""]).encode()

    with s3_server() as server:
        new_bucket(server, "my-bucket")

        def held() -> list[str]:
            listed = httpx.get(f"{server}/my-bucket?list-type=2&prefix=some-prefix").text
            return re.findall("<Key>([^<]+)</Key>", listed)

        async with world.running("alice") as alice:
            await alice.apply(*(each.replace("https://s3.amazonaws.com", server) for each in texts))
            await check_ready(alice)
            upload = await alice.api.flow.stage("a.csv", rows())
            request = wire.IngestRequest(uploads=(upload.id,), format="csv")
            (item,) = (await alice.done(alice.api.flow.ingest("my-dataset", request))).items
            assert item.records == 5_000, item
            await became(lambda: [each for each in held() if not each.endswith(MARK)])
            assert (await alice.api.datasets.tail("my-dataset", 1)).rows


@pytest.mark.parametrize(
    ("refused", "rule", "said"),
    [
        ("source-polling-url.proj-latest", "engine-unavailable", "datafusion"),
        ("source-push-http.dataset-aggregates", "engine-unknown", "flink"),
        ("sink-webhook-dataset-events.webhook-target-canonical", "unknown-type", "names no type"),
    ],
)
async def test_examples_for_what_is_not_here_are_refused_by_its_name(
    world: World, outside: Any, refused: str, rule: str, said: str
) -> None:
    async with world.running("alice") as alice:
        await alice.apply(*VALUES, *of_here(refused.partition(".")[0], outside))
        try:
            (item,) = (await alice.apply((GOLDEN / f"{refused}.yaml").read_text())).items
            fault = item.fault
        except Invalid as invalid:
            fault = invalid
        assert fault is not None
        assert (fault.rule, said in f"{fault!r} {fault.hint}") == (rule, True), fault


# The examples of RFC-019, of its repository and of its text, and those of RFC-018, on one running node.


GOLDEN_019 = Path(__file__).parents[1] / "golden" / "rfc019"
TEXT_019 = """$schema: https://opendatafabric.org/schemas/flows/v1alpha1/Flow
headers:
  name: compact-and-gc-roots
spec:
  target:
    type: Dataset
    account: sergiimk
    name: '%'
    labels:
      datasetKind: Root
  triggers:
    - kind: Event
      events:
        type: dataset.ref.updated
      cooldown: 10min
  tasks:
    - kind: Compaction
      maxSliceSize: 100MiB
      maxSliceRecords: 10000
      onNoOp: Break
      onFailure: Fail
    - kind: GarbageCollection
  retryPolicy:
    maxAttempts: 3
    minDelay: 1min
    backoff: Exponential
  recentBindingsRetention:
    maxBindings: 10
  recentRunsRetention:
    maxRuns: 100
    maxAge: 30d
"""
"""The Flow of the text, with the pattern in quotes, without which it is no YAML."""
THEIRS = """$schema: Dataset
headers: {name: bar, account: sergiimk}
spec: {kind: Root, metadata: []}
---
$schema: Dataset
headers: {name: foo, account: sergiimk}
spec:
  kind: Derivative
  metadata:
  - kind: SetTransform
    inputs: [{datasetRef: bar, alias: bar}]
    transform: {kind: Sql, engine: spark, query: select * from bar}
"""
WANTED = {"update-all-deriv", "compact-all-roots", "compact-and-gc-roots", "flow-run-123456", "task-123456"}
HOOKED = "$schema: https://opendatafabric.org/schemas/flow/v1alpha1/Flow\nheaders:\n  name: sensor.temp.http\n"
"""The head of the Flow of a webhook, which has the name of another example's Flow."""


def of_all(outside: Any, bucket: str) -> Iterator[Sequence[str]]:
    """Yields the examples of both RFCs, those of each group together, with addresses of here."""
    yield (ACCOUNT, THEIRS, *VALUES)
    for group in GROUPS:
        texts = of_here(group, outside)
        if group.startswith("sink"):
            assert any(HOOKED in each for each in texts)
            texts = [each.replace(HOOKED, HOOKED.replace("sensor.temp.http", "hook")) for each in texts]
        if group.startswith("storage"):
            texts = [each.replace("https://s3.amazonaws.com", bucket).replace(KEY, "AKIAHOUSE") for each in texts]
        yield texts
    yield (*(path.read_text() for path in sorted(GOLDEN_019.glob("*.yaml"))), TEXT_019)


@pytest.mark.slow
async def test_the_examples_of_both_rfcs_end_ready_on_one_node(world: World, outside: Any) -> None:
    with s3_server() as bucket:
        new_bucket(bucket, "my-bucket")
        async with world.running("alice", **INSIDE) as alice:
            for texts in of_all(outside, bucket):
                done = await alice.apply(*texts)
                assert {each.action for each in done.items} <= {"created", "unchanged"}
            assert {each.name for each in done.items} == WANTED
            sent = [{"ts": f"2024-01-01T00:{n // 60:02}:{n % 60:02}Z", "temp": n / 2} for n in range(100)]
            lines = "\n".join(map(json.dumps, sent)).encode()
            await ask(alice, "POST", "/source/v1alpha1/sources/sensor.temp.http/ingest", body=lines)
            await became(lambda: records(alice, "sensor.temp") == 100)
            with trio.fail_after(PATIENCE):
                await alice.parts.reconciler.wait_settled()  # times before a flow is in force do not count
            alice.clock.instant += 1800 * SECOND
            alice.parts.flows.loop.poke()
            await became(lambda: records(alice, "ca.bankofcanada") == 2)
            await became(lambda: bool(outside.calls))
            with trio.fail_after(PATIENCE):
                while True:
                    grown = alice.parts.context.events.grown
                    views = await alice.api.declarations.list(None, None)
                    if {str(each.status["phase"]) for each in views} == {"Ready"}:
                        break
                    await grown.wait()
            types = {each.type for each in views}
            assert {"PersistentVolume", "Source", "WebhookTarget", "Flow", "FlowRun", "Task", "Relations"} <= types
            run = await alice.api.declarations.get("FlowRun", "flow-run-123456")
            assert [each["kind"] for each in run.spec["tasks"]] == ["Transform", "GarbageCollection"]
            ran = {each.kind for each in alice.board.list() if not each.is_declared}
            assert {"pull", "gc"} <= ran


RUN = """$schema: FlowRun
headers: {{name: once{more}}}
spec:
  target: {target}
  tasks: [{tasks}]
"""


def run(tasks: str, target: str = "raw", more: str = "") -> str:
    return RUN.format(tasks=tasks, target=target, more=more)


RAW = "$schema: Dataset\nheaders: {name: raw}\nspec: {kind: Root, metadata: []}\n"


async def ended(node: Node, name: str = "once") -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        while True:
            grown = node.parts.context.events.grown
            found: dict[str, Any] = (await node.api.declarations.get("FlowRun", name)).status
            if found["phase"] in ("Ready", "Failed"):
                return found
            await grown.wait()


async def test_a_run_is_done_once_and_its_tasks_in_order(world: World) -> None:
    text = run("{kind: VerifyChain}, {kind: Ext, $schema: Verify, name: all}")
    async with world.running("alice") as alice:
        (_, item) = (await alice.apply(RAW, text)).items
        assert item.warnings == ("spec.tasks[1]: kind: Ext, $schema: Verify is read as kind: Verify",)
        assert (await ended(alice))["phase"] == "Ready"
        verified = [each.kind for each in alice.board.list() if each.kind == "verify"]
        assert len(verified) == 2
        assert [each.action for each in (await alice.apply(text)).items] == ["unchanged"]
        with pytest.raises(Refused) as refused:
            await alice.apply(run("{kind: Verify}"))
        assert refused.value.rule == "immutable"
    async with world.running("alice") as alice:
        await alice.parts.reconciler.wait_settled()
        assert (await ended(alice))["phase"] == "Ready"
        assert [each.kind for each in alice.board.list() if each.kind in ("run", "verify")] == []


@pytest.mark.parametrize(
    ("tasks", "phase"),
    [
        ("{kind: Transform}, {kind: Verify}", "Failed"),
        ("{kind: Transform, onFailure: Continue}, {kind: Verify}", "Ready"),
        ("{kind: Verify}, {kind: Verify, target: absent}", "Failed"),
    ],
)
async def test_a_run_fails_with_the_first_task_that_does(world: World, tasks: str, phase: str) -> None:
    async with world.running("alice") as alice:
        await alice.apply(RAW, run(tasks))
        found = await ended(alice)
        assert found["phase"] == phase
        waits = "absent" in tasks
        assert phase == "Ready" or found["code"] == ("unresolved-reference" if waits else "flow-run")
        if waits:
            await alice.apply(RAW.replace("raw", "absent"))
            await alice.parts.reconciler.wait_settled()
            assert (await ended(alice))["phase"] == "Ready"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (run(""), "flow-tasks"),
        (run("{kind: Verify}").replace("  target: raw\n", ""), "task-target"),
        (run("{kind: Dance}"), "unknown-kind"),
    ],
)
async def test_a_run_that_makes_no_sense_is_refused(world: World, text: str, rule: str) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Invalid) as refused:
            await alice.apply(RAW, text)
        assert refused.value.rule == rule
        assert await alice.api.declarations.list(None, None) == []


async def test_a_run_of_an_account_does_what_the_account_may(world: World) -> None:
    async with world.running("node", private=True) as node:
        asking = await settled(node)
        with pytest.raises(Fault) as refused:
            await asking.apply(BOB, run("{kind: Verify}", "theirs"))
        assert "theirs" in refused.value.message
        with pytest.raises(Fault) as refused:
            await asking.apply(BOB, run("{kind: GarbageCollection}").replace("  target: raw\n", ""))
        assert refused.value.rule == "access-owner"
        await asking.apply(BOB, DATASET.format(name="his", more=""), run("{kind: VerifyChain}", "his"))
        assert (await ended(node, "bob/once"))["phase"] == "Ready"
