"""Invitations: what is written is read, and nothing else is."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Fault, Invalid, Refused
from chain.statements import canonical
from chain.statements.envelope import preauth
from chain.statements.keys import SigningKey
from chain.statements.statement import RuleGroup, Rules, WitnessRules
from odfd.network.invitation import MAX_TEXT, SCHEME, TYPE, Invitation, read_invitation, rule_lines, write_invitation
from p2p.identity import peer_of_seed

NOW = instant.parse("2026-01-01T00:00:00Z")
KEY, OTHER = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
PEER = f"/ip4/192.0.2.7/tcp/4150/p2p/{peer_of_seed(b'k' * 32)}"
GROUPS = (RuleGroup(name="graz", keys=(OTHER.did,)), RuleGroup(name="wien", keys=(KEY.did, OTHER.did)))


def invitation(**more: Any) -> Invitation:
    said = {"network": "demo", "bootstrap": (PEER,), "by": KEY.did, "expires_at": "2026-01-08T00:00:00Z"}
    return Invitation(**said | more)


names = st.from_regex(r"[a-z]([a-z0-9]{0,8})(\.[a-z0-9]{1,8}){0,2}", fullmatch=True)
hosts = st.sampled_from(["/ip4/192.0.2.7", "/ip6/2001:db8::7", "/dns4/example.org"])
addresses = st.builds("{}/tcp/{}/p2p/{}".format, hosts, st.integers(1, 65535), st.just(peer_of_seed(b"k" * 32)))
rules = st.builds(
    Rules,
    use=st.none() | st.sampled_from(["data", "data & attested:1"]),
    groups=st.none() | st.just(GROUPS),
    f=st.none() | st.integers(0, 100),
    witness=st.none() | st.builds(WitnessRules, quorum=st.none() | st.integers(0, 100)),
)


@pytest.mark.slow
@given(
    names, st.lists(addresses, min_size=1, max_size=8).map(tuple), st.none() | st.just(OTHER.did), st.none() | rules,
    st.sampled_from(["", " ", "\n", "\n  "]),
)  # fmt: skip
def test_what_is_written_is_read(
    network: str, bootstrap: tuple[str, ...], policy_key: Any, asked: Rules | None, between: str
) -> None:
    said = invitation(network=network, bootstrap=bootstrap, policy_key=policy_key, rules=asked)
    text = write_invitation(said, KEY)
    wrapped = between + between.join(text[at : at + 60] for at in range(0, len(text), 60)) + between
    assert read_invitation(wrapped, NOW) == said


@given(st.data())
def test_a_changed_invitation_is_refused(data: st.DataObject) -> None:
    raw = bytearray(base64.urlsafe_b64decode(write_invitation(invitation(), KEY).removeprefix(SCHEME) + "=="))
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    with pytest.raises(Invalid, match="not an invitation"):
        read_invitation(SCHEME + base64.urlsafe_b64encode(raw).decode().rstrip("="), NOW)


@pytest.mark.parametrize("text", ["odf:", "odf:hello world", "odf:AQ"])
def test_a_line_too_short_for_any_version_is_cut_short(text: str) -> None:
    with pytest.raises(Invalid, match="it is cut short, or was changed"):
        read_invitation(text, NOW)


@given(st.text(max_size=80) | st.text("odf:AQ-_ \n", max_size=80).map(SCHEME.__add__))
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(Fault):
        read_invitation(text, NOW)


def signed(payload: bytes, key: SigningKey = KEY) -> str:
    raw = b"\x01" + key.sign(preauth(payload, TYPE)) + payload
    return SCHEME + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def test_a_forged_invitation_is_refused() -> None:
    """By somebody else's key; under another type; by bytes that another parser may read in another way."""
    honest = base64.urlsafe_b64decode(write_invitation(invitation(), KEY).removeprefix(SCHEME) + "==")[65:]
    assert read_invitation(signed(honest), NOW) == invitation()
    head = SigningKey(b"k" * 32).sign(preauth(honest))
    other_type = SCHEME + base64.urlsafe_b64encode(b"\x01" + head + honest).decode().rstrip("=")
    for forged in (signed(honest, OTHER), other_type, signed(b" " + honest), signed(b"[]"), signed(b"{}")):
        with pytest.raises(Invalid, match="not an invitation"):
            read_invitation(forged, NOW)
    for payload in (honest.replace(b"/p2p/", b"/q2q/"), honest.replace(b'["/ip4', b'["/ipx')):
        with pytest.raises(Invalid):
            read_invitation(signed(payload), NOW)


OTHERS = f"/ip4/192.0.2.7/tcp/4150/p2p/{peer_of_seed(b'o' * 32)}"
TOKEN: dict[str, Any] = {"token": "ab" * 32, "uses": 1}


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"network": name}
            for name in ("..", ".", "", "a/b", "a..b", "-a", "vіllage", "ｄemo", "demo\u202e", "a" * 254)
        ),
        {"bootstrap": []},
        {"bootstrap": [PEER] * 9},
        {"bootstrap": ["/ip4/192.0.2.7/tcp/4150"]},
        {"bootstrap": ["/unix/run/odfd.sock"]},
        {"bootstrap": ["/ip4/192.0.2.7/tcp/4150/p2p/../../x"]},
        {**TOKEN, "bootstrap": [OTHERS]},
        {**TOKEN, "uses": None},
        {**TOKEN, "uses": 0},
        {**TOKEN, "uses": 101},
        {**TOKEN, "token": "ab" * 31},
        {**TOKEN, "token": "AB" * 32},
        {"token": None, "uses": 3},
        {"expiresAt": "2026-13-01T00:00:00Z"},
        {"expiresAt": "99999-01-01T00:00:00Z"},
        {"by": "did:key:zz"},
        {"policyKey": "did:key:zz"},
        {"rules": {"use": "x" * 1025}},
    ],
    ids=str,
)
def test_a_link_that_its_author_signed_is_refused_where_it_could_lead_astray(change: dict[str, Any]) -> None:
    """Anybody signs with a key of his own: names that look like others, addresses that are none, and a token that would
    be shown to another node than the one that is to redeem it."""
    said = msgspec.json.decode(msgspec.json.encode(invitation(), enc_hook=str)) | change
    payload = canonical.encode({key: value for key, value in said.items() if value is not None})
    with pytest.raises((Invalid, Refused)) as caught:
        read_invitation(signed(payload), NOW)
    assert caught.value.rule
    whole = canonical.encode(msgspec.json.decode(msgspec.json.encode(invitation(**TOKEN), enc_hook=str)))
    assert read_invitation(signed(whole), NOW) == invitation(**TOKEN)


def test_it_ends_when_it_says() -> None:
    text = write_invitation(invitation(), KEY)
    last = instant.parse("2026-01-08T00:00:00Z")
    assert read_invitation(text, instant.Instant(last - 1)) == invitation()
    with pytest.raises(Refused, match="good until 2026-01-08T00:00:00Z"):
        read_invitation(text, last)


def test_one_too_long_is_neither_written_nor_read() -> None:
    keys = tuple(SigningKey(bytes([number]) * 32).did for number in range(64))
    groups = tuple(RuleGroup(name=f"g{number}", keys=keys) for number in range(8))
    with pytest.raises(Invalid, match="characters"):
        write_invitation(invitation(rules=Rules(groups=groups)), KEY)
    with pytest.raises(Invalid, match="characters"):
        read_invitation(SCHEME + "A" * MAX_TEXT, NOW)


def test_rules_are_told_line_by_line() -> None:
    said = Rules(use="data & attested:1", groups=GROUPS, f=0, witness=WitnessRules(quorum=2))
    assert rule_lines(said) == (
        "use: data & attested:1", "validators: graz (1 key), wien (2 keys)", "f: 0", "quorum: 2",
    )  # fmt: skip
    assert rule_lines(None) == ()
