"""The attacks of a siege on what a node answers beside its network: statements of SQL, pushes, calls of webhooks.

Each is a coroutine of one address, which sends with a client of HTTP what it has, and counts it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import httpx
import trio

from chain.errors import Fault
from chain.multihash import Multihash
from odfd.smart.transport import conversation
from p2p.web.transfer import WebTransfers
from worlds.siege_plan import OPENED, TOLD, Plan
from worlds.sql_texts import SEEDS, endless, mutated

Door = Callable[[Plan, httpx.AsyncClient, Counter[str]], Awaitable[None]]
NAMES = ("statements of SQL", "endless queries", "pushes without a token", "calls of webhooks")
SMART = {"x-odf-smtp-version": "1"}


def headers_of_others(bearers: Sequence[str], good: str) -> list[dict[str, str]]:
    """What callers write who may not. ``bearers``: tokens that count for nothing here; ``good``: another, misplaced."""
    given = [{"Authorization": f"Bearer {each}"} for each in bearers]
    given += [{}, {"Authorization": f"Basic {good}"}, {"Authorization": good}, {"Cookie": f"token={good}"}]
    return [*given, {"X-Forwarded-User": "carol"}, {"odfd-account": "carol"}]


async def statements_of_sql(plan: Plan, client: httpx.AsyncClient, sent: Counter[str]) -> None:
    """By names that are datasets, tables of a WITH, DuckDB's own and files; some are to be signed."""
    lot = random.Random(os.urandom(8))
    datasets = [{"id": plan.dataset, "alias": alias} for alias in ("t", "u")]
    for _ in range(20):
        text = mutated(lot, lot.choice(SEEDS), lot.choice(SEEDS))
        include = ["Proof"] if lot.random() < 0.3 else []
        given = await client.post("/query", json={"query": text, "datasets": datasets, "include": include})
        sent["statements of SQL"] += 1
        sent["statements of SQL that were answered"] += given.status_code == 200
        sent[TOLD] += any(secret in given.text for secret in plan.secrets)
        await trio.sleep(lot.random())


async def endless_queries(plan: Plan, client: httpx.AsyncClient, sent: Counter[str]) -> None:
    sent["endless queries"] += 1
    with suppress(httpx.TimeoutException):
        given = await client.post("/query", json={"query": endless(plan.name)}, timeout=random.uniform(1.0, 15.0))
        sent["endless queries that were ended"] += given.status_code != 200
        sent[OPENED] += given.status_code == 200
    await trio.sleep(random.uniform(5.0, 15.0))


async def pushes_without_token(plan: Plan, client: httpx.AsyncClient, sent: Counter[str]) -> None:
    forged = os.urandom(24).hex()
    async with WebTransfers() as web:
        for headers in headers_of_others(("odf_wrong", forged), forged):
            for path in (f"{plan.name}/push", f"new/push?token={forged}"):
                sent["pushes without a token"] += 1
                with suppress(Fault):
                    async with conversation(web, f"http://{plan.site}/{path}", SMART | headers):
                        sent[OPENED] += 1
            name = Multihash.sha3_256(os.urandom(8))
            given = await client.put(f"/{plan.name}/data/{name}", content=b"x", headers=headers)
            sent[OPENED] += given.status_code < 400
            await trio.sleep(0.2)


async def calls_of_webhooks(plan: Plan, _client: httpx.AsyncClient, sent: Counter[str]) -> None:
    """With signatures of other keys, of other bodies, and none; to Sources that take none, and that are none."""
    body = b'{"x": 1}'
    other = "sha256=" + hmac.new(os.urandom(32), body, hashlib.sha256).hexdigest()
    empty = "sha256=" + hmac.new(b"", body, hashlib.sha256).hexdigest()
    async with httpx.AsyncClient(base_url=f"http://{plan.api}", timeout=60.0) as client:
        for name in ("hooked", "closed", "nowhere", "hooked/../closed"):
            for said in (other, empty, "", "sha256=", other * 40, None):
                headers = {"X-Delivery": os.urandom(4).hex()} | ({} if said is None else {"X-Hub-Signature-256": said})
                given = await client.post(f"/hooks/{name}", content=body, headers=headers)
                sent["calls of webhooks"] += 1
                sent[OPENED] += given.status_code < 400
                await trio.sleep(0.2)


DOORS: tuple[Door, ...] = (statements_of_sql, endless_queries, pushes_without_token, calls_of_webhooks)
