"""Signatures of webhooks: those of the senders' own libraries count, and no changed byte does."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Invalid, Refused
from chain.instant import SECOND, Instant
from odfd.ingest.endpoint import (
    LEAST_SECRET,
    TOLERANCE,
    HmacSignature,
    StandardWebhooks,
    check_header,
    check_signature,
    key_of,
    secret_name,
)
from odfd.store.webhook_target import signing_key

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The example of the specification of Standard Webhooks, with its id, time, body and signature."""
BODY = b'{"test": 2432232314}'
HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
NOW = Instant(1614265330 * SECOND)
STANDARD = StandardWebhooks(secret="")


def test_the_example_of_the_specification_counts() -> None:
    key = signing_key(SECRET)
    assert check_signature(STANDARD, key, HEADERS, BODY, NOW) == HEADERS["webhook-id"]
    two = {**HEADERS, "webhook-signature": f"v1,AAAA v2,x {HEADERS['webhook-signature']}"}
    assert check_signature(STANDARD, key, two, BODY, NOW) == HEADERS["webhook-id"]


def test_the_example_of_github_counts() -> None:
    """Of its documentation of webhooks: secret, payload and header."""
    said = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    key, body = b"It's a Secret to Everybody", b"Hello, World!"
    assert check_signature(HmacSignature(secret=""), key, {"x-hub-signature-256": said}, body, NOW) is None
    named = HmacSignature(secret="", id_header="X-GitHub-Delivery")
    headers = {"x-hub-signature-256": said, "x-github-delivery": "72d3162e"}
    assert check_signature(named, key, headers, body, NOW) == "72d3162e"
    own = HmacSignature(secret="", header="X-Signature", prefix="")
    assert check_signature(own, key, {"x-signature": said.removeprefix("sha256=")}, body, NOW) is None


@pytest.mark.parametrize("seconds", [-TOLERANCE - 1, TOLERANCE + 1])
def test_a_call_of_another_time_is_a_replay(seconds: int) -> None:
    with pytest.raises(Refused, match="not signed"):
        check_signature(STANDARD, signing_key(SECRET), HEADERS, BODY, Instant(NOW + seconds * SECOND))


@given(st.data())
def test_no_changed_byte_counts(data: Any) -> None:
    key = data.draw(st.binary(min_size=24, max_size=40))
    body = data.draw(st.binary(max_size=40))
    call, at = data.draw(st.text("abc_", min_size=1, max_size=8)), "1614265330"
    mac = hmac.new(key, f"{call}.{at}.".encode() + body, hashlib.sha256).digest()
    headers = {"webhook-id": call, "webhook-timestamp": at, "webhook-signature": "v1," + base64.b64encode(mac).decode()}
    assert check_signature(STANDARD, key, headers, body, NOW) == call
    part = data.draw(st.sampled_from(["body", "key", *headers]))
    other = dict(headers)
    if part in headers:
        other[part] = data.draw(st.text(max_size=60).filter(lambda text: text.split() != headers[part].split()))
    changed_body = body + b"x" if part == "body" else body
    changed_key = bytes([key[0] ^ 1]) + key[1:] if part == "key" else key
    with pytest.raises(Refused):
        check_signature(STANDARD, changed_key, other, changed_body, NOW)
    said = {"x-hub-signature-256": "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()}
    with pytest.raises(Refused):
        check_signature(HmacSignature(secret=""), key, said, body + b"\0", NOW)
    for bad in ({}, {"x-hub-signature-256": ""}, {"x-hub-signature-256": "sha256=\udcff"}):
        with pytest.raises(Refused):
            check_signature(HmacSignature(secret=""), key, bad, body, NOW)


def test_a_secret_is_named_and_never_written() -> None:
    assert secret_name("${{ config.hook }}") == "hook"
    for text in ("sesame", "${{ env.HOOK }}", "x${{ config.hook }}", ""):
        with pytest.raises(Invalid):
            secret_name(text)
    check_header("X-Hub-Signature-256")
    for text in ("", "a b", "ä", "x" * 65):
        with pytest.raises(Invalid):
            check_header(text)


@pytest.mark.parametrize(
    "secret", ["", " ", "sesame", "whsec_", "whsec_AAAA", "whsec_no base64 at all", "x" * (LEAST_SECRET - 1)]
)
@pytest.mark.parametrize("signature", [STANDARD, HmacSignature(secret="")])
def test_a_secret_that_can_be_guessed_signs_nothing(secret: str, signature: Any) -> None:
    """With an empty one anybody signs: that a Source names a secret does not say that there is one."""
    if isinstance(signature, StandardWebhooks) or len(secret) < LEAST_SECRET:
        with pytest.raises(Environment) as caught:
            key_of(signature, secret, "hooked")
        assert caught.value.rule == "webhook-secret"
        assert not secret.strip() or secret not in str(caught.value)
    assert key_of(HmacSignature(secret=""), "x" * LEAST_SECRET, "hooked") == b"x" * LEAST_SECRET


def test_a_captured_call_is_no_other_call() -> None:
    """Not of another id, at another time, to a Source of another secret, nor behind many that are wrong."""
    key, good = signing_key(SECRET), HEADERS["webhook-signature"]
    for headers in (
        {**HEADERS, "webhook-id": "msg_another"},
        {**HEADERS, "webhook-id": ""},
        {**HEADERS, "webhook-timestamp": str(int(HEADERS["webhook-timestamp"]) + 1)},
        {**HEADERS, "webhook-timestamp": "+1614265330"},
        {**HEADERS, "webhook-timestamp": "1614265330 "},
        {**HEADERS, "webhook-signature": good.replace("v1,", "v1a,")},
        {**HEADERS, "webhook-signature": " ".join(["v1,AAAA"] * 16 + [good])},
    ):
        with pytest.raises(Refused):
            check_signature(STANDARD, key, headers, BODY, NOW)
    with pytest.raises(Refused):
        check_signature(STANDARD, signing_key("whsec_" + "A" * 32), HEADERS, BODY, NOW)
