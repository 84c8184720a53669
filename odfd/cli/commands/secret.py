"""``secret``: shows and rotates the key that values of SecretSets are sealed to, and seals values for manifests."""

from __future__ import annotations

import argparse
import json
import sys

from chain.wording import plural
from odfd import output
from odfd.cli.command import Commands, argument
from odfd.cli.session import Session
from odfd.control import calls

commands = Commands()
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
    help="seal a value, read from standard input, for one place in a manifest",
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
