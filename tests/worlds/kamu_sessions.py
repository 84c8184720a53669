"""The sessions of the transcripts of a real kamu, and what a node does in each, both recorded and replayed.

All are about one golden dataset, which has ``HALF`` of its blocks at first, so that nothing depends on times or keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from chain.instant import Instant
from config import model
from odfd.access.relations import Role
from odfd.control import wire
from worlds.transcripts import shorter

GOLDEN: Final = Path(__file__).parents[1] / "golden"
TRANSCRIPTS: Final = GOLDEN / "kamu-smart"
EVENTS: Final = GOLDEN / "kamu" / "events"
ORDERS: Final = GOLDEN / "kamu" / "orders"
NAME: Final = "events"
HALF: Final = 5
TAKES: Final = model.Http(listen=("127.0.0.1:0",), push=True)
ACCOUNT: Final = "$schema: Account\nheaders: {name: carol}\nspec: {email: carol@example.com}\n"
REPOSITORY: Final = """$schema: SecretSet
headers: {name: kamu-token}
spec: {secrets: {token: %s}}
---
$schema: Repository
headers: {name: kamu}
spec: {url: "odf+http://%s", credentials: kamu-token}
"""
FOREVER: Final = Instant(2**62)


def half(folder: Path) -> Path:
    """The dataset as it was before."""
    shorter(EVENTS, folder, HALF)
    return folder


async def bring(node: Any, folder: Path, name: str = NAME) -> None:
    await node.done(node.api.flow.import_(wire.ImportRequest(source=str(folder), as_name=name)))


async def token_of(node: Any, most: Role = Role.MAINTAINER) -> str:
    """A token with which kamu may push to a node, or do less."""
    await node.apply(ACCOUNT)
    account = (await node.api.declarations.get("Account", "carol")).headers["id"]
    token, _ = node.parts.tokens.make(account, most, "", FOREVER)
    return str(token)


async def know(node: Any, host: str, token: str) -> None:
    """Makes kamu's server at an address a repository of the node."""
    await node.apply(REPOSITORY % (token, host))


async def pull(node: Any, ref: str = f"kamu/{NAME}", as_name: str | None = None) -> wire.PullItem:
    more = {} if as_name is None else {"as_name": as_name}
    (item,) = await node.pull(ref, **more)
    assert item.fault is None, item.fault
    return item


async def push(node: Any) -> wire.PushItem:
    (item,) = (await node.done(node.api.pushing.push(wire.PushRequest(refs=(NAME,), to=f"kamu/{NAME}")))).items
    assert item.fault is None, item.fault
    return item


def head_of(node: Any, name: str = NAME) -> str:
    head = node.home.chains.chain(node.dataset(name)).head()
    assert head is not None
    return str(head.hash)


def host_of(node: Any) -> str:
    (url,) = node.parts.site.urls
    return str(url).removeprefix("http://")
