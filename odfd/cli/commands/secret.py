"""``secret``: the key that values of SecretSets are sealed to, and values that are sealed away from the node."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from chain.errors import Invalid
from chain.wording import plural
from odfd import output
from odfd.cli.command import Commands, argument
from odfd.cli.offline.files import read_limited
from odfd.cli.session import Session
from odfd.control import wire
from odfd.errors import Usage
from odfd.resources.sets import JWE, KEY, MAX_VALUE_BYTES, named_binding

MAX_KEY_BYTES: Final = 64 * 1024

commands = Commands()
secret = commands.group("secret", help="the key of secrets", example="rotate")


@secret.add("key", help="show the public key that secrets are sealed to for this node")
def _key(session: Session, _: argparse.Namespace) -> None:
    key = session.client.get("/secrets/key", wire.SecretKey)
    session.answer(key, lambda _: json.dumps(key.sent, separators=(",", ":")))


@secret.add(
    "seal",
    argument("set", metavar="SET", help="name of the SecretSet that it is for"),
    argument("key", metavar="KEY", help="its name there"),
    argument("--to", metavar="FILE", help="what odfctl secret key printed; else the daemon is asked"),
    help="seal a value, read from standard input, for one place in a manifest",
    example="hooks signing < signing.txt\nhooks signing --to node.jwk < signing.txt",
)
def _seal(session: Session, args: argparse.Namespace) -> None:
    """The value is read from standard input: arguments are seen by other users of a machine."""
    from odfd.trust.keys.secret_keys import seal_to

    if not KEY.match(args.key):
        raise Usage(f"{args.key[:60]!r} is no name of a value", hint="like apiKey or API_KEY")
    public = _public(session, args.to)
    if sys.stdin.isatty():
        session.remark("type the value, then press Ctrl-D")
    sealed = seal_to(public, _value(), named_binding(args.set, args.key))
    entry = {args.key: {"value": sealed, "contentEncoding": JWE}}
    if session.output == "table":
        output.say(f"{args.key}: {{value: {sealed}, contentEncoding: {JWE}}}")
    else:
        session.show(entry, str)
    session.remark(f"for spec.secrets of the SecretSet {args.set}; no other set, key or node opens it")


def _public(session: Session, path: str | None) -> dict[str, str]:
    """Raises Invalid for a file that holds no key."""
    if path is None:
        sent: dict[str, str] = session.client.get("/secrets/key", wire.SecretKey).sent
        return sent
    try:
        found = json.loads(read_limited(path, MAX_KEY_BYTES, "key of a node"))
    except (ValueError, RecursionError) as error:
        hint = "odfctl secret key of the node prints it"
        raise Invalid(f"{path} holds no key: {error}", rule="secret-key", hint=hint) from error
    return found if isinstance(found, dict) else {}


def _value() -> str:
    """Without the newline that an editor leaves at the end. Raises Invalid."""
    raw = sys.stdin.buffer.read(MAX_VALUE_BYTES + 2)
    try:
        text = raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise Invalid("the value is no text in UTF-8", rule="set-limit", hint="encode it, as with base64") from error
    if len(text.encode()) > MAX_VALUE_BYTES:
        raise Invalid("the value is larger than 64 KiB", rule="set-limit", hint="keep it in a file, and its place here")
    if not text:
        raise Invalid("there is no value on standard input", rule="set-limit", hint="odfctl secret seal SET KEY < FILE")
    return text


@secret.add("rotate", help="seal all values to a new key, and destroy the one before")
def _rotate(session: Session, _: argparse.Namespace) -> None:
    done = session.client.post("/secrets/rotation", wire.SecretRotation)
    session.answer(done, lambda row: f"{plural(row.values, 'value')} sealed to a new key")
    session.remark("keys/secrets.jwks is another now: back it up. Backups of before need the key of then")
