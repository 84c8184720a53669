"""Seals a value for one place in a manifest, without the node, using the public key that the node shows."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from chain.errors import Invalid
from odfd.cli.offline.files import read_limited
from odfd.errors import Usage
from odfd.resources.sets import JWE, KEY, MAX_VALUE_BYTES, named_binding
from odfd.store.keys.secret_keys import seal_to

_MOST_KEY_BYTES: Final = 64 * 1024
_HINT: Final = "odfctl secret key of the node prints it"


def check_key(key: str) -> None:
    """Raises Usage unless ``key`` can be the name of a value."""
    if not KEY.match(key):
        raise Usage(f"{key[:60]!r} is no name of a value", hint="like apiKey or API_KEY")


def read_public_key(path: str) -> dict[str, str]:
    """Reads the output of ``odfctl secret key`` from a file. Raises NotFound, Environment, Invalid."""
    try:
        found = json.loads(read_limited(path, _MOST_KEY_BYTES, "key of a node"))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{path} holds no key: {error}", rule="secret-key", hint=_HINT) from error
    return found if isinstance(found, dict) else {}


def read_value() -> str:
    """Reads a value from standard input, without the newline that an editor leaves at the end. Raises Invalid.

    It is never an argument, since other users of the machine can see arguments.
    """
    raw = sys.stdin.buffer.read(MAX_VALUE_BYTES + 3)
    try:
        text = raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise Invalid("the value is no text in UTF-8", rule="set-limit", hint="encode it, as with base64") from error
    if len(text.encode()) > MAX_VALUE_BYTES:
        raise Invalid("the value is larger than 64 KiB", rule="set-limit", hint="keep it in a file, and its path here")
    if not text:
        raise Invalid("there is no value on standard input", rule="set-limit", hint="odfctl secret seal SET KEY < FILE")
    return text


def sealed_entry(public: dict[str, str], place: tuple[str, str], text: str) -> dict[str, Any]:
    """Returns the entry for a key of ``spec.secrets``. ``place``: the set and the key. Raises Invalid."""
    return {"value": seal_to(public, text, named_binding(*place)), "contentEncoding": JWE}
