"""``token``: makes, lists and revokes the tokens by which other machines act as an account."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from odfd import output
from odfd.cli.command import Commands, argument
from odfd.cli.formatting import moment
from odfd.cli.new_file import NewFile
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import calls, wire

commands = Commands()
token = commands.group("token", help="tokens of an account", example="list")


@token.add(
    "create",
    argument("--role", choices=("reader", "editor", "maintainer", "owner"), default="owner",
             help="that it has at the most (all that the account has)"),
    argument("--expires", metavar="TIME", default="30d", help="how long it is good for (30d; at most 366d)"),
    argument("--note", metavar="TEXT", default="", help="where it is used, for people"),
    argument("--out", metavar="FILE", help="a new file for it, which its owner alone reads; else it is printed"),
    help="make a token, which is shown once",
    example="--role reader --expires 12h --out token",
)  # fmt: skip
def _create(session: Session, args: argparse.Namespace) -> None:
    request = wire.TokenRequest(role=args.role, expires=args.expires, note=args.note)
    with nullcontext() if args.out is None else NewFile(args.out, is_private=True).writing() as file:
        made = session.client.do(calls.accounts_create_token(request))
        if file is not None:
            file.write(f"{made.value.token}\n".encode())
    good = f"{made.value.id} of {made.value.account}, good until {moment(made.value.expires_at)}"
    if args.out is not None:
        output.say(f"token {good}: {args.out}")
        return
    session.answer(made, lambda view: view.token or "")
    session.remark(f"{good}; it is shown this once")


@token.add("list", help="tokens that are good, without what opens anything")
def _list(session: Session, _: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.accounts_tokens()), _text)


@token.add("revoke", argument("id", metavar="ID", nargs="+"), help="end tokens, at once", example="0123456789abcdef")
def _revoke(session: Session, args: argparse.Namespace) -> None:
    for each in args.id:
        gone = session.client.do(calls.accounts_revoke_token(each))
        session.answer(gone, lambda view: f"token {view.id} of {view.account} is good for nothing more")


def _text(views: list[wire.TokenView]) -> str:
    if not views:
        return "no tokens"
    return render(_COLUMNS, views)


_COLUMNS = (
    TableColumn[wire.TokenView]("ID", lambda each: each.id),
    TableColumn[wire.TokenView]("ACCOUNT", lambda each: each.account),
    TableColumn[wire.TokenView]("ROLE", lambda each: each.role),
    TableColumn[wire.TokenView]("GOOD UNTIL", lambda each: moment(each.expires_at)),
    TableColumn[wire.TokenView]("NOTE", lambda each: each.note),
)
