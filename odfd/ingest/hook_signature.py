"""Checks the signatures of webhook calls, by which other services push to a Source without a token.

Two kinds: Standard Webhooks, which sign the id and the time of a call with its body, and an HMAC-SHA256 of the body in
a header, as GitHub and many others write it. Pure. Source: standardwebhooks.com, specification 1.0.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from chain.errors import Environment, Invalid, Refused
from chain.instant import SECOND, Instant
from odfd.resources.manifest import described
from odfd.store.webhook_target import signing_key

RULE: Final = "webhook-signature"
TOLERANCE: Final = 300
"""Seconds that the time of a call may differ from its arrival, either way."""
_SECRET: Final = re.compile(r"\$\{\{\s*config\.(\w+)\s*\}\}")
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_TIME: Final = re.compile(r"[0-9]{1,12}\Z", re.ASCII)
LEAST_SECRET: Final = 16
"""Fewest bytes of a secret: with one call at hand a shorter one is found by trying, and an empty one by anybody."""
_SIGNATURES: Final = 16
"""Signatures of a call that are compared; a sender gives two while its key changes."""


class StandardWebhooks(msgspec.Struct, frozen=True, kw_only=True, tag="StandardWebhooks"):
    """A signature by Standard Webhooks; a repeated id of a call counts once."""

    secret: Annotated[str, described("The secret, as ${{ config.NAME }}: whsec_… or a text.")]


class HmacSignature(msgspec.Struct, frozen=True, kw_only=True, tag="Hmac", rename="camel"):
    """A header that contains the HMAC-SHA256 of the body, in hexadecimal."""

    secret: Annotated[str, described("The secret, as ${{ config.NAME }}.")]
    header: Annotated[str, described("Name of the header, such as X-Hub-Signature-256.")] | None = None
    prefix: Annotated[str, described("Text before the digits. Default: sha256=.")] | None = None
    id_header: (
        Annotated[str, described("Header with the id of a call, such as X-GitHub-Delivery: a repeated id counts once.")]
        | None
    ) = None


def secret_name(text: str) -> str:
    """Returns the NAME of ``${{ config.NAME }}``. Raises Invalid for any other text: a spec must not hold a secret."""
    found = _SECRET.fullmatch(text)
    if found is None:
        hint = "secret: ${{ config.hook }}, and config: {hook: 'SecretSet:NAME#KEY'}"
        raise Invalid("the secret of a signature is not named", rule="source-endpoint", hint=hint)
    return found[1]


def key_of(signature: StandardWebhooks | HmacSignature, secret: str, source: str) -> bytes:
    """Returns the key of a Source's signatures. Raises Environment for a secret that signs nothing."""
    try:
        key = signing_key(secret) if isinstance(signature, StandardWebhooks) else secret.encode()
    except Invalid:
        key = b""
    if len(key) < LEAST_SECRET:
        raise Environment(
            f"the secret of the Source {source} is too short for signatures, or is none: no call counts",
            rule="webhook-secret",
            hint=f"apply its SecretSet with at least {LEAST_SECRET} bytes, and give the sender the same",
        )
    return key


def check_header(text: str) -> None:
    """Raises Invalid unless ``text`` can be the name of a header."""
    if _HEADER.match(text) is None:
        raise Invalid(f"{text[:80]!r} is no name of a header", rule="source-endpoint", hint="X-Hub-Signature-256")


def check_signature(
    signature: StandardWebhooks | HmacSignature, key: bytes, headers: Mapping[str, str], body: bytes, now: Instant
) -> str | None:
    """Checks a call's signature. Returns the id of the call, if it has one.

    ``headers``: by names in lower case. Raises Refused.
    """
    if isinstance(signature, HmacSignature):
        return _by_body(signature, key, headers, body)
    call, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not call or _TIME.match(at) is None or abs(int(at) - now // SECOND) > TOLERANCE:
        raise _refusal()
    mac = hmac.new(key, f"{call}.{at}.".encode() + body, hashlib.sha256).digest()
    given = headers.get("webhook-signature", "").split()[:_SIGNATURES]
    if not any(hmac.compare_digest(mac, _decode(each)) for each in given):
        raise _refusal()
    return call


def _by_body(signature: HmacSignature, key: bytes, headers: Mapping[str, str], body: bytes) -> str | None:
    prefix = "sha256=" if signature.prefix is None else signature.prefix
    said = headers.get((signature.header or "X-Hub-Signature-256").lower(), "")
    mac = prefix + hmac.new(key, body, hashlib.sha256).hexdigest()
    # compare_digest takes no text beyond ASCII, which a header may have.
    if not hmac.compare_digest(mac.encode(), said.encode(errors="replace")):
        raise _refusal()
    return None if signature.id_header is None else headers.get(signature.id_header.lower())


def _decode(text: str) -> bytes:
    version, _, encoded = text.partition(",")
    try:
        return base64.b64decode(encoded, validate=True) if version == "v1" else b""
    except (binascii.Error, ValueError):
        return b""


def _refusal() -> Refused:
    hint = "sign it with the Source's secret, and send it within five minutes"
    return Refused("the call is not signed for a Source here", rule=RULE, hint=hint)


def unknown_source() -> Refused:
    """Returns one fault for a missing Source and one without signed calls: callers must not tell them apart."""
    return _refusal()
