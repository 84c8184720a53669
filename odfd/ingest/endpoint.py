"""Describes the endpoint of a Source, checks pushes to it, and fetches the pushes that wait.

The bodies of pushes are checked as far as their format allows without columns. Faults that depend on the columns appear
when a dataset takes a push in; ``odfctl source drop`` then removes it.

Other services push without a token, by signatures of two kinds: Standard Webhooks, which sign the id and the time of a
call with its body (standardwebhooks.com, specification 1.0), and an HMAC-SHA256 of the body in a header, as GitHub and
many others write it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import trio

from chain.errors import Environment, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.model.events import SourceState
from chain.model.source import ReadCsv, ReadJson, ReadNdGeoJson, ReadNdJson, ReadParquet, ReadStep
from chain.model.wire import U64, Scalar
from chain.wording import size
from odfd.ingest.fetch.source import DEFAULT_SOURCE, Fetched, FetchJob, FetchOutcome, Unchanged
from odfd.resources.manifest import describe
from odfd.resources.types import OWN
from odfd.store.spool import Buffer, OverflowPolicy, Spooled
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

    secret: Annotated[str, describe("The secret, as ${{ config.NAME }}: whsec_… or a text.")]


class HmacSignature(msgspec.Struct, frozen=True, kw_only=True, tag="Hmac", rename="camel"):
    """A header that contains the HMAC-SHA256 of the body, in hexadecimal."""

    secret: Annotated[str, describe("The secret, as ${{ config.NAME }}.")]
    header: Annotated[str, describe("Name of the header, such as X-Hub-Signature-256.")] | None = None
    prefix: Annotated[str, describe("Text before the digits. Default: sha256=.")] | None = None
    id_header: (
        Annotated[str, describe("Header with the id of a call, such as X-GitHub-Delivery: a repeated id counts once.")]
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
            f"the secret of the Source {source} is missing or too short for signatures: no call is accepted",
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


STATE: Final = "w3id.org/odfd/push"
"""Kind of a source state: the id of a Source, and the number of the last push that was taken."""
MAX_PUSH: Final = 8 << 20
"""Bytes of one push, which is checked as a whole in memory."""
_MOST: Final = 1000
"""Pushes taken in by one transaction."""
_MOST_BYTES: Final = 64 << 20
_USUAL: Final = 1000
"""Records of a buffer whose size is not declared."""


class MemoryBuffer(msgspec.Struct, frozen=True, kw_only=True, tag="Memory", rename="camel"):
    """A buffer in memory, whose records a crash loses."""

    buffer_size: Annotated[U64, describe("Most records that wait. Default: 1000.")] | None = None
    overflow_policy: (
        Annotated[
            OverflowPolicy,
            Scalar("int32"),
            describe("If the buffer is full: Reject (default) refuses new records, DropOldest drops the oldest."),
        ]
        | None
    ) = None


class RestEndpoint(msgspec.Struct, frozen=True, kw_only=True, tag="RestEndpoint"):
    """An endpoint to which records are pushed: POST /source/v1alpha1/sources/NAME/ingest."""

    buffer: (
        Annotated[MemoryBuffer, describe("A buffer in memory. Without one, a push is on disk before it is answered.")]
        | None
    ) = None
    signature: (
        Annotated[
            StandardWebhooks | HmacSignature,
            describe("Accepts calls signed in this way at /hooks/NAME, without a token."),
            OWN,
        ]
        | None
    ) = None


def buffer_of(endpoint: RestEndpoint) -> Buffer | None:
    said = endpoint.buffer
    if said is None:
        return None
    return Buffer(
        _USUAL if said.buffer_size is None else said.buffer_size, said.overflow_policy or OverflowPolicy.REJECT
    )


def records_in(data: bytes, read: ReadStep) -> int:
    """Checks a push against its format. Returns the number of records; a document counts as one.

    Raises Invalid for a push that is empty, too large, or not of the format.
    """
    if not data.strip() or len(data) > MAX_PUSH:
        text = f"{size(len(data))} were pushed" if data.strip() else "nothing was pushed"
        raise Invalid(text, rule="push-size", hint=f"from one record to {size(MAX_PUSH)}; odfctl ingest takes more")
    try:
        match read:
            case ReadNdJson() | ReadNdGeoJson() if _is_utf8(read):
                # msgspec.Raw leaves texts as they are, so bytes that are no UTF-8 would pass.
                data.decode()
                return len(_LINES.decode_lines(data))
            case ReadJson() if _is_utf8(read):
                data.decode()
                msgspec.json.decode(data, type=msgspec.Raw)
                return 1
            case ReadCsv() if _is_utf8(read):
                data.decode()
                rows = data.count(b"\n") + (not data.endswith(b"\n")) - bool(read.header)
                return max(rows, 1)
            case ReadParquet() if not (data[:4] == data[-4:] == b"PAR1"):
                raise Invalid("this is no Parquet file", rule="push-format", hint=_FORMAT)
            case _:
                return 1
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        kind = read.__struct_config__.tag
        raise Invalid(f"this is no {kind}: {error}", rule="push-format", hint=_FORMAT) from error


_LINES: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FORMAT: Final = "the Source's read step declares the records: odfctl describe source NAME"


def _is_utf8(read: ReadStep) -> bool:
    return (getattr(read, "encoding", None) or "utf8").lower() in ("utf8", "utf-8")


Take: TypeAlias = Callable[[str, int, int, int], tuple[Sequence[Spooled], bool]]
"""The signature of ``odfd.store.spool.PushSpool.after``."""
Note: TypeAlias = Callable[[str, DatasetId, int], None]
"""The signature of ``odfd.store.spool.PushSpool.reads``."""


class EndpointFetch(NamedTuple):
    """Fetches for one dataset the pushes to one Source."""

    source: str
    """The id of the Source."""
    dataset: DatasetId
    singly: bool
    """Whether each push is a transaction of its own, since each is a whole snapshot."""
    take: Take
    note: Note

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches the pushes after the source state. Raises Environment if the file of one is gone or cut off."""
        return await trio.to_thread.run_sync(self._fetch, job)

    def _fetch(self, job: FetchJob) -> FetchOutcome:
        after = position(job.value_of(STATE), self.source)
        # The chain knows what it took: a crash between its commit and this note leaves pushes that are freed now.
        self.note(self.source, self.dataset, after)
        found, has_more = self.take(self.source, after, 1 if self.singly else _MOST, _MOST_BYTES)
        if not found:
            return Unchanged()
        missing = next((each for each in found if not _is_whole(each)), None)
        if missing is not None:
            raise Environment(
                f"the file of push #{missing.number} is gone or cut off",
                rule="endpoint-push",
                hint=f"odfctl source drop NAME {missing.number} continues without it",
            )
        first, last = found[0], found[-1]
        span = f"#{first.number}" if first is last else f"#{first.number} to #{last.number}"
        return Fetched(
            path=first.path,
            more=tuple(each.path for each in found[1:]),
            name=f"push {span}",
            identity=f"push:{self.source}:{first.number}:{last.number}",
            event_time=last.at,
            state=SourceState(source_name=DEFAULT_SOURCE, kind=STATE, value=f"{self.source}/{last.number}"),
            has_more=has_more,
        )


def _is_whole(push: Spooled) -> bool:
    try:
        return push.path.stat().st_size == push.bytes
    except FileNotFoundError:
        return False


def position(state: str | None, source: str) -> int:
    """Returns the number of the last push that was taken; 0 if the state is of another Source, or there is none."""
    whose, _, number = (state or "").rpartition("/")
    return int(number) if whose == source and number.isascii() and number.isdigit() else 0
