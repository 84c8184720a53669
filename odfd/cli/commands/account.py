"""``account``, ``token``, ``secret``: who the user is here, tokens for use from elsewhere, the key of SecretSets."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext

from chain.wording import plural
from odfd import output
from odfd.cli.command import Commands, argument
from odfd.cli.formatting import moment
from odfd.cli.new_file import NewFile
from odfd.cli.session import Session
from odfd.cli.table import TableColumn, render
from odfd.control import calls, wire

commands = Commands()


@commands.add(
    "account",
    description="Show who you are at this node: its owner, an account, or unknown. Accounts are "
    "resources: odfctl get accounts lists them, odfctl apply makes them.",
    example="-o json",
)
def _account(session: Session, _: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.accounts_me()), _account_text)


def _account_text(view: wire.AccountView) -> str:
    if view.node_owner:
        return "the owner of this node, with every right"
    if view.name is None:
        return "no account of this node: you read what is open to any client"
    member = f", member of {', '.join(view.organizations)}" if view.organizations else ""
    return f"{view.name} ({view.id}){member}"


token = commands.group("token", help="tokens of an account", example="list")


@token.add(
    "create",
    argument("--role", choices=("reader", "editor", "maintainer", "owner"), default="owner",
             help="maximum role of the token (default: the account's)"),
    argument("--expires", metavar="TIME", default="30d", help="how long it is valid (30d; at most 366d)"),
    argument("--note", metavar="TEXT", default="", help="where it is used; a note for its owner"),
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
    good = f"{made.value.id} of {made.value.account}, valid until {moment(made.value.expires_at)}"
    if args.out is not None:
        output.say(f"token {good}: {args.out}")
        return
    session.answer(made, lambda view: view.token or "")
    session.remark(f"{good}; it is shown this once")


@token.add("list", help="tokens that are good, without what opens anything")
def _list(session: Session, _: argparse.Namespace) -> None:
    session.answer(session.client.do(calls.accounts_tokens()), _token_table)


@token.add("revoke", argument("id", metavar="ID", nargs="+"), help="end tokens, at once", example="0123456789abcdef")
def _revoke(session: Session, args: argparse.Namespace) -> None:
    for each in args.id:
        gone = session.client.do(calls.accounts_revoke_token(each))
        session.answer(gone, lambda view: f"token {view.id} of {view.account} is revoked")


def _token_table(views: list[wire.TokenView]) -> str:
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


secret = commands.group("secret", help="the key that secrets are sealed to", example="rotate")


@secret.add("key", help="print this node's public key for sealing secrets")
def _key(session: Session, _: argparse.Namespace) -> None:
    key = session.client.do(calls.declarations_secret_key())
    session.answer(key, lambda _: json.dumps(key.sent, separators=(",", ":")))


@secret.add(
    "seal",
    argument("set", metavar="SET", help="name of its SecretSet"),
    argument("key", metavar="KEY", help="its name in the SecretSet"),
    argument("--to", metavar="FILE", help="the public key that odfctl secret key printed (default: the daemon's)"),
    help="seal a value, read from standard input, for one field of a manifest",
    example="hooks signing < signing.txt\nhooks signing --to key.json < signing.txt",
)
def _seal(session: Session, args: argparse.Namespace) -> None:
    from odfd.cli.offline import sealing

    sealing.check_key(args.key)
    if args.to is None:
        public = session.client.do(calls.declarations_secret_key()).sent
    else:
        public = sealing.read_public_key(args.to)
    if sys.stdin.isatty():
        session.remark("type the value, then press Ctrl-D")
    entry = sealing.sealed_entry(public, (args.set, args.key), sealing.read_value())
    if session.output == "table":
        output.say(f"{args.key}: {{value: {entry['value']}, contentEncoding: {entry['contentEncoding']}}}")
    else:
        session.show({args.key: entry}, str)
    session.remark(f"for spec.secrets of the SecretSet {args.set}; no other set, key or node opens it")


@secret.add("rotate", help="seal all values to a new key, and destroy the old key")
def _rotate(session: Session, _: argparse.Namespace) -> None:
    done = session.client.do(calls.declarations_rotate_secrets())
    session.answer(done, lambda row: f"{plural(row.values, 'value')} sealed to a new key")
    session.remark("keys/secrets.jwks is another now: back it up. Backups of before need the key of then")
