"""``python -m worlds.besieger PLAN``: hostile identities of one address run the attacks of ``worlds.siege_attacks``.

PLAN is JSON. What was sent is told as a line of JSON each second, by attack. Each identity mounts two attacks against
every target, and comes back whenever it is thrown out: with another key every half a minute, and sooner where nobody
lets it in any more. It runs until it is ended.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial

import httpx
import msgspec
import trio

from p2p.host.host import open_host
from worlds.hostile import dials, from_address
from worlds.siege_attacks import ATTACKS, FAILS, OF_SITES, Attack, Identity
from worlds.siege_doors import DOORS, Door
from worlds.siege_host import keep_house
from worlds.siege_plan import Plan

LIFE = 30.0
"""Seconds of a key."""
REFUSALS = 5
"""Connections in a row that one target refuses, after which the key is given up."""
BLOCKS, KEYS = 20, 8
"""Of a burst: blocks of addresses, and keys that dial from each at once."""
PAUSE = 15.0
"""Seconds between two bursts, which cost their sender as much as the node."""


async def again_and_again(one: Identity, attack: Attack, address: str, life: trio.CancelScope) -> None:
    refused = 0
    while refused < REFUSALS:
        with suppress(*FAILS), trio.fail_after(60):
            refused += 1
            target = await one.host.connect(address)
            refused = 0
            await attack(one, target)
        await trio.sleep(0.2)
    one.sent["keys that were shut out"] += 1
    life.cancel()


async def live(plan: Plan, number: int, sent: Counter[str]) -> None:
    """One key after the other."""
    serial = number << 32
    attacks = {ATTACKS[number % len(ATTACKS)], ATTACKS[(number + plan.identities) % len(ATTACKS)]}
    while True:
        seed = os.urandom(32)
        sent["keys"] += 1
        with trio.move_on_after(LIFE) as life:
            async with open_host(seed) as host, trio.open_nursery() as nursery:
                one = Identity(plan, host, seed, serial, sent)
                for attack in attacks:
                    for address in plan.targets:
                        nursery.start_soon(again_and_again, one, attack, address, life)
        serial = one.serial


async def answer(plan: Plan, sent: Counter[str]) -> None:
    """Connected with all for as long as it is let, and asked by them."""
    seed = os.urandom(32)
    sent["keys that answer"] += 1
    async with open_host(seed) as host:
        Identity(plan, host, seed, 0, sent)
        while True:
            for address in plan.targets:
                with suppress(*FAILS), trio.fail_after(60):
                    await host.connect(address)
            await trio.sleep(2)


async def at_the_site(plan: Plan, attack: Attack, sent: Counter[str]) -> None:
    host, _, port = plan.site.rpartition(":")
    while True:
        with suppress(*FAILS):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await attack(plan, stream, sent)
        await trio.sleep(0.5)


async def at_the_door(plan: Plan, attack: Door, sent: Counter[str]) -> None:
    while True:
        with suppress(*FAILS):
            async with httpx.AsyncClient(base_url=f"http://{plan.site}", timeout=60.0) as client:
                await attack(plan, client, sent)
        await trio.sleep(0.5)


async def burst(plan: Plan, sent: Counter[str]) -> None:
    """Many keys from many blocks of addresses, without a pause, each for a moment."""
    while True:
        for address in plan.targets:
            async with AsyncExitStack() as stack:
                for block in range(BLOCKS):
                    hosts = [await stack.enter_async_context(open_host(os.urandom(32))) for _ in range(KEYS)]
                    with from_address(f"127.1.{block}.9"):
                        async with trio.open_nursery() as nursery:
                            for host in hosts:
                                nursery.start_soon(dials, host, address)
                sent["bursts of connections"] += 1
            await trio.sleep(PAUSE)


async def tell(sent: Counter[str]) -> None:
    while True:
        print(msgspec.json.encode(sent).decode(), flush=True)
        await trio.sleep(1)


async def attack_everything(plan: Plan, sent: Counter[str]) -> None:
    async with trio.open_nursery() as nursery:
        for attack in OF_SITES:
            nursery.start_soon(at_the_site, plan, attack, sent)
        for door in DOORS:
            nursery.start_soon(at_the_door, plan, door, sent)
        for number in range(plan.identities):
            nursery.start_soon(partial(live, plan, number, sent))


async def answer_all(plan: Plan, sent: Counter[str]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(plan.identities):
            nursery.start_soon(answer, plan, sent)


ROLES = {"besiegers": attack_everything, "answers": answer_all, "bursts": burst, "host": keep_house}


async def besiege(plan: Plan, sent: Counter[str]) -> None:
    with from_address(plan.address):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell, sent)
            nursery.start_soon(ROLES[plan.role], plan, sent)


def main() -> None:
    """What ends an attacker by its own fault is told and counted, and it begins anew: the siege goes on."""
    plan, sent = msgspec.json.decode(sys.argv[1], type=Plan), Counter[str]()
    while True:
        try:
            trio.run(besiege, plan, sent)
        except Exception:  # noqa: BLE001  whatever it is: the siege is not over for it
            traceback.print_exc()
            sent["attackers that broke by themselves"] += 1


if __name__ == "__main__":
    main()
