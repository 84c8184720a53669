"""A node with accounts, asked by users of its machine."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

import structlog
import trio

from odfd.api.access.requests import AccessControl
from odfd.api.routes import application
from odfd.control import wire
from odfd.control.endpoint import ACT_AS, CALLER, Caller
from odfd.node.assembly import access_of
from odfd.runtime.http import Application
from worlds.called_services import CalledServices
from worlds.eventually import PATIENCE

ACCOUNT = """$schema: Account
headers: {{name: {name}, annotations: {{unixCallers: {{users: ["{uid}"]}}}}}}
spec: {{email: {name}@example.com}}
"""
MINE = """$schema: Dataset
headers: {name: mine}
spec:
  kind: Derivative
  metadata:
  - kind: SetTransform
    inputs: [{datasetRef: "%s", alias: a}]
    transform: {kind: Sql, engine: spark, query: select * from a}
"""
"""What derives from one dataset; ``%`` says which."""
GRANT = """$schema: Relations
headers: {{name: {name}}}
spec: {{relations: [{{subject: "Account:{who}", relation: role, value: {role}, object: "Dataset:{what}"}}]}}
"""
DATASET = """$schema: Dataset
headers: {{name: {name}{more}}}
spec:
  kind: Root
  metadata:
  - kind: AddPushSource
    sourceName: default
    read: {{kind: NdJson, schema: {{fields: [{{name: x, type: Int64}}]}}}}
    merge: {{kind: Append}}
"""
ALICE, BOB, NOBODY = 70001, 70002, 70003


class Asking:
    """The API of a node, asked by users of the machine."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.access: AccessControl = access_of(node.features, node.services)
        self.app: Application = application(node.services, structlog.get_logger(), None, self.access)

    async def ask(
        self, uid: int, method: str, path: str, body: object = None, *, as_: str = "", query: str = "",
        scope: dict[str, Any] | None = None, more: dict[str, str] | None = None,
    ) -> tuple[int, Any]:  # fmt: skip
        """Returns the status and the JSON of an answer."""
        sent, data, status = b"" if body is None else json.dumps(body).encode(), bytearray(), 0
        named = {**({ACT_AS: as_} if as_ else {}), **(more or {})}
        headers = [(key.encode(), value.encode()) for key, value in named.items()]
        whole = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(), "root_path": "",
            "headers": headers, **({CALLER: Caller(1, uid, uid)} if scope is None else scope),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            data.extend(message.get("body", b""))

        await self.app(whole, receive, send)
        text = bytes(data)
        return status, json.loads(text) if text[:1] in (b"{", b"[") else text

    async def datasets(self, uid: int) -> list[str]:
        """Returns the names of the datasets that are listed."""
        status, listed = await self.ask(uid, "GET", "/dataset/v1alpha1/datasets")
        assert status == 200, listed
        return [each["headers"]["name"] for each in listed["items"]]

    async def services(self, uid: int) -> Any:
        subject = await self.access.subject({"headers": [], CALLER: Caller(1, uid, uid)})
        return CalledServices.of(self.access.dispatcher(self.node.services, subject))

    async def apply(self, uid: int, *texts: str, dry_run: bool = False) -> wire.ApplyResult:
        given = tuple(wire.ManifestText(source=f"m{at}.yaml", text=text) for at, text in enumerate(texts))
        services = await self.services(uid)
        result: wire.ApplyResult = await self.node.done(
            services.applying.apply(wire.ApplyRequest(manifests=given, dry_run=dry_run))
        )
        return result


async def settled(node: Any) -> Asking:
    """Accounts of alice and bob; a dataset of alice, one of the node's owner."""
    asking = Asking(node)
    await node.apply(ACCOUNT.format(name="alice", uid=ALICE), ACCOUNT.format(name="bob", uid=BOB))
    await node.apply(DATASET.format(name="hers", more=", account: alice"), DATASET.format(name="theirs", more=""))
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    return asking


def steady(said: Any) -> Any:
    """An answer without what the node writes as time goes by."""
    if isinstance(said, dict):
        return {
            key: steady(value)
            for key, value in said.items()
            if key not in ("status", "updatedAt", "generation", "resourceVersion")
        }
    return [steady(each) for each in said] if isinstance(said, list | tuple) else said
