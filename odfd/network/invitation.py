"""Encodes and decodes invitations: a line of text by which a new node joins a network.

A line is ``odf:`` and, in base64url without padding, a version byte, the inviter's Ed25519 signature, and a payload in
canonical JSON. The payload names the network, peers to meet first, and the key whose policies hold there. It gives no
rights: whoever finds an invitation learns addresses and nothing else. The signature covers the whole payload, under a
type of its own (DSSE's pre-authentication encoding). The network's rules are included as the inviter knew them, to be
shown before anybody joins; the rules that apply are those signed by the network's key. Spec:
docs/spec/replication.md#invitations.

``fetch_invitation`` reads one that somebody published as a file on the web: ``odfctl join https://example.org``. The
file holds the line that ``odfctl network invite`` prints. It is trusted as far as that line is: the inviter signed it,
and it is shown before anybody joins. Another line put in its place on the way would be as valid, so only https is used,
except with a server on this machine. If only a server is named, the well-known path (RFC 8615) is fetched.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from chain import instant
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.ids import KeyDid, parse_name
from chain.instant import Instant
from chain.statements import canonical, keys
from chain.statements.envelope import preauth
from chain.statements.keys import SigningKey
from chain.statements.predicate import When
from chain.statements.statement import RuleGroup, Rules, WitnessRules, from_text
from chain.wording import plural
from odfd.store.invitation_tokens import MAX_USES
from p2p.address import MAX_ADDRESS, parse_address
from p2p.identity import peer_of_did
from p2p.ports import RemoteFiles
from p2p.web.client import Patience

SCHEME: Final = "odf:"
MAX_TEXT: Final = 8192
"""Characters of an invitation."""
MAX_BOOTSTRAP: Final = 8
TYPE: Final = "application/vnd.odf.invitation.v1+json"
_VERSION: Final = b"\x01"
_SIGNATURE: Final = 64
_CHANGED: Final = "it is cut short, or was changed"


class Invitation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The content of an invitation."""

    network: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    bootstrap: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS)], ...],
        msgspec.Meta(min_length=1, max_length=MAX_BOOTSTRAP),
    ]
    """Multiaddrs that end with ``/p2p/…``."""
    by: KeyDid
    """The key of the inviting node."""
    expires_at: When
    policy_key: KeyDid | None = None
    """The key that signs the network's policies; ``None`` if there are none."""
    rules: Rules | None = None
    """The newest policies that the inviter knew."""
    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None
    """The token to redeem at the inviter's node; ``None`` for an invitation to everybody."""
    uses: Annotated[int, msgspec.Meta(ge=1, le=MAX_USES)] | None = None
    """How many nodes may redeem the token."""

    def check(self) -> None:
        """Raises Invalid if fields do not fit together, or no address belongs to the node that redeems the token."""
        for address in self.bootstrap:
            if parse_address(address).peer is None:
                raise Invalid(
                    f"{address!r} does not say whose it is", rule="multiaddr", hint="append /p2p/ and the peer id"
                )
        if (self.token is None) != (self.uses is None):
            raise Invalid("a token has a number of uses, and only a token has", rule="invitation")
        # No other node may see the token (test_a_link_that_its_author_signed_is_refused_where_it_could_lead_astray).
        if self.token is not None and not self.inviters():
            raise Invalid("none of its addresses is of the node that redeems its token", rule="invitation")

    def inviters(self) -> list[str]:
        """Returns the addresses of the inviting node."""
        inviter = peer_of_did(self.by)
        return [each for each in self.bootstrap if parse_address(each).peer == inviter]


def write_invitation(invitation: Invitation, key: SigningKey) -> str:
    """Writes an invitation, signed by the key of ``invitation.by``. Raises Invalid if it cannot be read back."""
    payload = canonical.encode(msgspec.json.decode(msgspec.json.encode(invitation, enc_hook=str)))
    raw = _VERSION + key.sign(preauth(payload, TYPE)) + payload
    text = SCHEME + base64.urlsafe_b64encode(raw).decode().rstrip("=")
    if len(text) > MAX_TEXT:
        raise Invalid(
            f"an invitation of {len(text):,} characters",
            rule="invitation",
            hint=f"at most {MAX_TEXT:,}: the network's policy lists too many keys to be shown in one",
        )
    _check(invitation)
    return text


def read_invitation(text: str, now: Instant) -> Invitation:
    """Raises Invalid for text that is no invitation or has another signature, Refused for an expired one."""
    # Mail programs break long lines: white space is ignored (docs/spec/replication.md#invitations).
    raw = _decode("".join(text.split()))
    signature, payload = raw[1 : 1 + _SIGNATURE], raw[1 + _SIGNATURE :]
    if len(raw) <= 1 + _SIGNATURE:
        raise _no_invitation(_CHANGED)
    if raw[:1] != _VERSION:
        raise _no_invitation("it is of a version that this node does not know", "a newer odfd may read it")
    try:
        value = canonical.decode(payload)
    except Invalid as error:
        raise _no_invitation(_CHANGED) from error
    try:
        invitation = msgspec.convert(value, Invitation, dec_hook=from_text)
    except (msgspec.MsgspecError, Invalid) as error:
        raise _no_invitation(str(error)) from error
    if not keys.verify(invitation.by.public_key, preauth(payload, TYPE), signature):
        raise _no_invitation(_CHANGED)
    _check(invitation)
    if instant.parse(invitation.expires_at) <= now:
        raise Refused(
            f"the invitation to {invitation.network} expired at {invitation.expires_at}",
            rule="invitation-expired",
            hint="ask for another one: odfctl network invite makes it",
        )
    return invitation


def rule_lines(rules: Rules | None) -> tuple[str, ...]:
    """Describes a network's rules for people, one line for each."""
    if rules is None:
        return ()
    witness = rules.witness or WitnessRules()
    values = {
        "use": rules.use,
        "serve": rules.serve,
        "validators": _groups(rules.groups),
        "f": rules.f,
        "min-engines": rules.min_engines,
        "min-sandbox": rules.min_sandbox,
        "max-stale": rules.max_stale,
        "witnesses": _groups(witness.groups),
        "witness f": witness.f,
        "quorum": witness.quorum,
        "cosignature age": witness.max_age,
    }
    return tuple(f"{name}: {value}" for name, value in values.items() if value is not None)


def _groups(groups: Sequence[RuleGroup] | None) -> str | None:
    if groups is None:
        return None
    return ", ".join(f"{group.name} ({plural(len(group.keys), 'key')})" for group in groups) or "nobody"


def _decode(text: str) -> bytes:
    if not text.startswith(SCHEME):
        raise _no_invitation("it does not begin with 'odf:'")
    if len(text) > MAX_TEXT:
        raise _no_invitation(f"it has {len(text):,} characters, and at most {MAX_TEXT:,} are read")
    body = text.removeprefix(SCHEME)
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _no_invitation(_CHANGED) from error


def _check(invitation: Invitation) -> None:
    parse_name(invitation.network, "network")
    invitation.check()


def _no_invitation(why: str, hint: str = "copy all of the line that odfctl network invite printed") -> Invalid:
    return Invalid(f"not an invitation: {why}", rule="invitation", hint=hint)


WEB: Final = "https://"
WELL_KNOWN: Final = "/.well-known/odf-invitation"
MAX_FILE: Final = MAX_TEXT + 1024
"""Bytes to read at most: the longest line, with white space around it."""
MAX_URL: Final = 2048
PATIENCE: Final = Patience(connect=5.0, silence=10.0, span=10.0, least=64, total=20.0)
"""Limits of the fetch; short, because a person waits for it."""
_ASK: Final = "ask the inviter for another address, or for the invitation itself (odf:…)"


def is_url(text: str) -> bool:
    """Whether a text is the address of an invitation, rather than an invitation."""
    return "://" in text[:16]


def invitation_url(text: str) -> str:
    """Returns the URL of the file that a text names. Raises Invalid."""
    text = text.strip()
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _no_url(text, str(error)) from error
    if len(text) > MAX_URL or not text.isascii() or not text.isprintable() or " " in text:
        raise _no_url(text, f"at most {MAX_URL:,} printable characters of ASCII")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(host)):
        raise _no_url(text, "a man in the middle could replace it", "begin it with https://")
    if not host or port == 0:
        raise _no_url(text, "it names no server")
    if parts.username is not None or parts.password is not None:
        raise _no_url(text, "it holds a name or a password")
    path = parts.path if parts.path not in ("", "/") or parts.query else WELL_KNOWN
    return parts._replace(path=path, fragment="").geturl()


async def fetch_invitation(url: str, web: RemoteFiles) -> str:
    """Fetches the text of the file, which ``read_invitation`` checks. Raises Remote, NotFound, Invalid."""
    try:
        body = await web.cat(url, MAX_FILE)
    except Remote as fault:
        fault.hint = _ASK  # nothing asks again by itself, as a mirror does
        raise
    if body is None:
        raise NotFound(f"there is no invitation at {url}", rule="invitation-file", hint=_ASK)
    try:
        return body.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise Invalid(f"what {url} holds is no invitation", rule="invitation", hint=_ASK) from error


def _is_here(host: str | None) -> bool:
    """Whether a server is on this machine, so that nobody is on the way."""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host or ""))


def _no_url(text: str, why: str, hint: str = _ASK) -> Invalid:
    return Invalid(f"not the address of an invitation: {text[:100]!r}: {why}", rule="invitation-url", hint=hint)
