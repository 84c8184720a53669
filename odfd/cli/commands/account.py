"""``account``: shows the account that the user is signed in as, as the node sees it."""

from __future__ import annotations

import argparse

from odfd.cli.command import Commands
from odfd.cli.session import Session
from odfd.control import calls, wire

commands = Commands()


@commands.add(
    "account",
    description="Show who you are at this node: its owner, an account, or nobody that it knows. Accounts are "
    "resources: odfctl get accounts lists them, odfctl apply makes them.",
    example="-o json",
)
def _account(session: Session, _: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.accounts_me()), _text)


def _text(view: wire.AccountView) -> str:
    if view.node_owner:
        return "the owner of this node, with every right"
    if view.name is None:
        return "no account of this node: you read what is open to anybody"
    member = f", member of {', '.join(view.organizations)}" if view.organizations else ""
    return f"{view.name} ({view.id}){member}"
