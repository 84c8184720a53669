"""Invitations: as text, as files on the web, and their tokens."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, Fault, Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant
from chain.statements import canonical
from chain.statements.envelope import preauth
from chain.statements.keys import SigningKey
from chain.statements.statement import RuleGroup, Rules, WitnessRules
from chain.store.database import Database, open_database
from odfd.network.invitation import (
    MAX_FILE,
    MAX_TEXT,
    PATIENCE,
    SCHEME,
    TYPE,
    WELL_KNOWN,
    Invitation,
    fetch_invitation,
    invitation_url,
    read_invitation,
    rule_lines,
    write_invitation,
)
from odfd.store import invitation_tokens
from odfd.store.invitation_tokens import (
    KEPT_SECONDS,
    MAX_INVITATIONS,
    MAX_USES,
    InvitationTokens,
    IssuedInvitation,
    digest_of_token,
    redeem,
)
from p2p.identity import peer_of_did, peer_of_seed
from p2p.ports import PeerId
from p2p.web.site import Web
from p2p.wire.invite import Redemption, decode_redeem, decode_redemption, encode_redeem, encode_redemption
from worlds.statements import NOW, key
from worlds.web_site import Site

# Invitations: what is written is read, and nothing else is.

WRITTEN_AT = instant.parse("2026-01-01T00:00:00Z")
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
    assert read_invitation(wrapped, WRITTEN_AT) == said


@given(st.data())
def test_a_changed_invitation_is_refused(data: st.DataObject) -> None:
    raw = bytearray(base64.urlsafe_b64decode(write_invitation(invitation(), KEY).removeprefix(SCHEME) + "=="))
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    with pytest.raises(Invalid, match="not an invitation"):
        read_invitation(SCHEME + base64.urlsafe_b64encode(raw).decode().rstrip("="), WRITTEN_AT)


@pytest.mark.parametrize("text", ["odf:", "odf:hello world", "odf:AQ"])
def test_a_line_too_short_for_any_version_is_cut_short(text: str) -> None:
    with pytest.raises(Invalid, match="it is cut short, or was changed"):
        read_invitation(text, WRITTEN_AT)


@given(st.text(max_size=80) | st.text("odf:AQ-_ \n", max_size=80).map(SCHEME.__add__))
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(Fault):
        read_invitation(text, WRITTEN_AT)


def signed(payload: bytes, key: SigningKey = KEY) -> str:
    raw = b"\x01" + key.sign(preauth(payload, TYPE)) + payload
    return SCHEME + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def test_a_forged_invitation_is_refused() -> None:
    """Attack T-INVITE-01: an altered, forged, expired or oversized invitation.

    Defence: it is signed whole, under a type of its own, and parsed under limits; it grants no rights and names eight
    addresses at most.

    By somebody else's key; under another type; by bytes that another parser may read in another way.
    """
    honest = base64.urlsafe_b64decode(write_invitation(invitation(), KEY).removeprefix(SCHEME) + "==")[65:]
    assert read_invitation(signed(honest), WRITTEN_AT) == invitation()
    head = SigningKey(b"k" * 32).sign(preauth(honest))
    other_type = SCHEME + base64.urlsafe_b64encode(b"\x01" + head + honest).decode().rstrip("=")
    for forged in (signed(honest, OTHER), other_type, signed(b" " + honest), signed(b"[]"), signed(b"{}")):
        with pytest.raises(Invalid, match="not an invitation"):
            read_invitation(forged, WRITTEN_AT)
    for payload in (honest.replace(b"/p2p/", b"/q2q/"), honest.replace(b'["/ip4', b'["/ipx')):
        with pytest.raises(Invalid):
            read_invitation(signed(payload), WRITTEN_AT)


OTHERS = f"/ip4/192.0.2.7/tcp/4150/p2p/{peer_of_seed(b'o' * 32)}"
TOKEN_FIELDS: dict[str, Any] = {"token": "ab" * 32, "uses": 1}


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
        {**TOKEN_FIELDS, "bootstrap": [OTHERS]},
        {**TOKEN_FIELDS, "uses": None},
        {**TOKEN_FIELDS, "uses": 0},
        {**TOKEN_FIELDS, "uses": 101},
        {**TOKEN_FIELDS, "token": "ab" * 31},
        {**TOKEN_FIELDS, "token": "AB" * 32},
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
    """Attack T-INVITE-01: an `odf:` link that is sound and signed by its author, but has a network name that looks like
    another, invalid addresses, or a token that another node than the inviter would see.

    Defence: names are ASCII in one form; each address is a peer's; only the key that signed the link sees the token,
    and that key must have an address in the link.

    Anybody signs with a key of his own: names that look like others, addresses that are none, and a token that would
    be shown to another node than the one that is to redeem it.
    """
    said = msgspec.json.decode(msgspec.json.encode(invitation(), enc_hook=str)) | change
    payload = canonical.encode({key: value for key, value in said.items() if value is not None})
    with pytest.raises((Invalid, Refused)) as caught:
        read_invitation(signed(payload), WRITTEN_AT)
    assert caught.value.rule
    whole = canonical.encode(msgspec.json.decode(msgspec.json.encode(invitation(**TOKEN_FIELDS), enc_hook=str)))
    assert read_invitation(signed(whole), WRITTEN_AT) == invitation(**TOKEN_FIELDS)


def test_it_ends_when_it_says() -> None:
    text = write_invitation(invitation(), KEY)
    last = instant.parse("2026-01-08T00:00:00Z")
    assert read_invitation(text, instant.Instant(last - 1)) == invitation()
    with pytest.raises(Refused, match="expired at 2026-01-08T00:00:00Z"):
        read_invitation(text, last)


def test_one_too_long_is_neither_written_nor_read() -> None:
    keys = tuple(SigningKey(bytes([number]) * 32).did for number in range(64))
    groups = tuple(RuleGroup(name=f"g{number}", keys=keys) for number in range(8))
    with pytest.raises(Invalid, match="characters"):
        write_invitation(invitation(rules=Rules(groups=groups)), KEY)
    with pytest.raises(Invalid, match="characters"):
        read_invitation(SCHEME + "A" * MAX_TEXT, WRITTEN_AT)


def test_rules_are_told_line_by_line() -> None:
    said = Rules(use="data & attested:1", groups=GROUPS, f=0, witness=WitnessRules(quorum=2))
    assert rule_lines(said) == (
        "use: data & attested:1", "validators: graz (1 key), wien (2 keys)", "f: 0", "quorum: 2",
    )  # fmt: skip
    assert rule_lines(None) == ()


# Invitations that are files on the web: which address is asked, what is read of it, and what is refused.

HERE = "https://example.org"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (HERE, HERE + WELL_KNOWN),
        (f" {HERE}/ ", HERE + WELL_KNOWN),
        (f"{HERE}:8443#x", f"{HERE}:8443{WELL_KNOWN}"),
        (f"{HERE}/village.txt", f"{HERE}/village.txt"),
        (f"{HERE}/?name=village", f"{HERE}/?name=village"),
        ("http://127.0.0.1:8080/village", "http://127.0.0.1:8080/village"),
        ("http://[::1]:8080", "http://[::1]:8080" + WELL_KNOWN),
    ],
)
def test_a_server_alone_is_asked_under_the_well_known_path(text: str, asked: str) -> None:
    assert invitation_url(text) == asked


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://example.org", "begin it with https"),
        ("file:///etc/passwd", "begin it with https"),
        ("http://127.0.0.1.example.org/village", "begin it with https"),
        ("http://192.168.1.7/village", "begin it with https"),
        ("https://", "no server"),
        ("https://me:secret@example.org", "password"),
        ("https://example.org:99999", "Port"),
        ("https://exämple.org", "ASCII"),
        ("https://example.org/a b", "ASCII"),
        ("https://example.org/" + "a" * 3000, "2,048"),
    ],
)
def test_other_addresses_are_refused(text: str, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        invitation_url(text)
    assert refused.value.rule == "invitation-url"
    assert why in f"{refused.value.message} {refused.value.hint}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "www"
    folder.mkdir()
    with Site(folder).open() as opened:
        yield opened


async def test_a_file_is_read_under_limits(site: Site) -> None:
    """Attack T-INVITE-01: a web site, or a man in the middle, that serves another invitation, an endless one, or a
    redirect into this network.

    Defence: the line is signed and shown before the node joins; https only, 9 KiB, 20 s, no redirect into a private
    network or from TLS to plain HTTP.
    """
    async with Web(PATIENCE) as web:
        for name, content in (("good", b"\n odf:abc\n"), ("bytes", b"odf:\xff"), ("long", b"o" * (MAX_FILE + 1))):
            (site.folder / name).write_bytes(content)
        assert await fetch_invitation(f"{site.url}/good", web) == "odf:abc"
        with pytest.raises(Invalid, match="no invitation"):
            await fetch_invitation(f"{site.url}/bytes", web)
        with pytest.raises(Remote, match="more than"):
            await fetch_invitation(f"{site.url}/long", web)
        with pytest.raises(NotFound, match="no invitation at"):
            await fetch_invitation(f"{site.url}/none", web)


@pytest.mark.slow
async def test_a_server_that_drips_is_left(site: Site) -> None:
    def drip(request: Any) -> bool:
        request.send_response(200)
        request.send_header("Content-Length", "9000")
        request.end_headers()
        with contextlib.suppress(OSError):
            while True:
                request.wfile.write(b"o")
                request.wfile.flush()
                time.sleep(0.02)

    site.answer = drip
    quick = PATIENCE._replace(total=0.3)
    async with Web(quick) as web:
        with pytest.raises(Remote) as left:
            await fetch_invitation(f"{site.url}/x", web)
    assert left.value.rule == "web-slow"


async def test_a_server_that_is_not_there_is_told_with_what_a_person_can_do() -> None:
    class Away:
        async def cat(self, url: str, limit: int) -> bytes | None:
            raise Remote(f"{url} is not available", rule="web-failed", hint="a mirror asks again by itself")

    web: Any = Away()
    with pytest.raises(Remote) as refused:
        await fetch_invitation("https://example.org/i", web)
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("ask the inviter")


# Tokens of invitations: who is admitted, what a crash leaves, and what is kept of them.

TOKEN = bytes(range(32))


def issued(uses: int = 1, seconds: int = 3600, token: bytes = TOKEN) -> IssuedInvitation:
    expires = Instant(NOW + seconds * SECOND)
    return IssuedInvitation(digest=digest_of_token(token), network="village", uses=uses, made=NOW, expires=expires)


def peer(number: int) -> PeerId:
    return peer_of_did(key(number).did)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path / "odfd.sqlite")) as opened:
        opened.migrate(invitation_tokens.ROOM, invitation_tokens.STEPS)
        yield opened


def redeem_in(database: Database, who: int, at: Instant = NOW, token: bytes = TOKEN, joined: Any = ("village",)) -> Any:
    with database.write() as connection:
        return InvitationTokens(connection).redeem(token, peer(who), joined, at)


def test_a_token_that_another_node_redeemed_is_refused(database: Database) -> None:
    """Attack T-INVITE-01: a token that a second node shows, after the first or beside it.

    Defence: it is bound to the first node in one transaction, before that node gets the answer.
    """
    with database.write() as connection:
        InvitationTokens(connection).issue(issued())
    assert redeem_in(database, 1) is Redemption.ADMITTED
    assert redeem_in(database, 2) is Redemption.USED, "a replay"
    assert redeem_in(database, 1) is Redemption.ADMITTED, "the same node may ask again"
    late = Instant(NOW + 7200 * SECOND)
    assert redeem_in(database, 1, late) is Redemption.ADMITTED, "it was admitted in time"
    assert redeem_in(database, 1, joined=("other",)) is Redemption.UNKNOWN, "the network was left"
    assert redeem_in(database, 1, token=bytes(32)) is Redemption.UNKNOWN
    with database.write() as connection:
        InvitationTokens(connection).revoke(issued().id[:3].upper())
    assert redeem_in(database, 1) is Redemption.REVOKED
    with database.read() as connection:
        assert InvitationTokens(connection).list_admitted(["village"]) == frozenset()


def test_after_its_end_a_token_admits_nobody_new_though_it_has_seats(database: Database) -> None:
    """Attack T-INVITE-01: a token that is redeemed after its end, by a node whose clock or whose file says otherwise.

    Defence: the node that invited compares the end with its own clock, in the same transaction.

    The node that invited decides by its own clock; what the joiner's file says, or its clock, is no matter.
    """
    with database.write() as connection:
        InvitationTokens(connection).issue(issued(uses=3))
    end = Instant(NOW + 3600 * SECOND)
    assert redeem_in(database, 1, Instant(end - 1)) is Redemption.ADMITTED
    assert redeem_in(database, 2, end) is Redemption.EXPIRED
    assert redeem_in(database, 1, end) is Redemption.ADMITTED, "it was admitted in time"
    with database.read() as connection:
        (kept,) = InvitationTokens(connection).all()
    assert kept.nodes == (key(1).did,)


def test_what_is_kept_redeems_nothing(database: Database, tmp_path: Path) -> None:
    """Attack T-INVITE-01: a stolen database of the node that invites.

    Defence: digests of tokens are kept, and no tokens.
    """
    with database.write() as connection:
        InvitationTokens(connection).issue(issued())
    with database.read() as connection:
        rows = connection.execute("SELECT * FROM invitations").fetchall()
    assert TOKEN not in b"".join(each for each in rows[0] if isinstance(each, bytes))
    assert TOKEN.hex() not in repr(rows)


@pytest.mark.slow
def test_what_cannot_be_issued(database: Database) -> None:
    with database.write() as connection:
        store = InvitationTokens(connection)
        for uses in (0, -1, MAX_USES + 1):
            with pytest.raises(Invalid, match="an invitation for"):
                store.issue(issued(uses))
        for number in range(MAX_INVITATIONS):
            store.issue(issued(token=number.to_bytes(32)))
        with pytest.raises(Refused, match="256 invitations"):
            store.issue(issued(token=b"x" * 32))
        first = store.all()[0]
        store.revoke(first.id)
        store.issue(issued(token=b"x" * 32))
        assert len(store.all()) == MAX_INVITATIONS
        with pytest.raises(NotFound):
            store.revoke(first.id)
        with pytest.raises(Invalid, match="more than one"):
            store.revoke("")
        later = msgspec.structs.replace(issued(token=b"y" * 32), made=Instant(NOW + (KEPT_SECONDS + 3601) * SECOND))
        store.issue(later)
        assert store.all() == [later], "what nobody redeemed is deleted long after"


def test_a_damaged_invitation_admits_nobody(database: Database) -> None:
    with database.write() as connection:
        InvitationTokens(connection).issue(issued())
        connection.execute("UPDATE invitations SET uses = 100")
    with pytest.raises(Environment):
        redeem_in(database, 1)
    with database.read() as connection:
        assert InvitationTokens(connection).all() == []


WHO = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5000), st.booleans()), max_size=25)


@given(asked=WHO, uses=st.integers(1, 3))
def test_no_more_nodes_than_it_is_for_are_ever_admitted(asked: list[tuple[int, int, bool]], uses: int) -> None:
    """Attack T-INVITE-01: more nodes than the token is for, in any order, with retries.

    Defence: the token never admits more nodes than it is for.

    In whatever order nodes ask, and whenever it is revoked; whoever was admitted stays so until then.
    """
    kept, admitted, now = issued(uses), set[int](), NOW
    for who, seconds, is_revoked in asked:
        now = Instant(now + seconds * SECOND)
        kept = msgspec.structs.replace(kept, revoked=kept.revoked or (is_revoked and seconds > 4000))
        outcome, changed = redeem(kept, key(who).did, ["village"], now)
        kept = changed or kept
        if outcome is Redemption.ADMITTED:
            admitted.add(who)
        assert kept.revoked or (who in admitted) == (outcome is Redemption.ADMITTED)
        assert len(admitted) <= uses
        assert {key(each).did for each in admitted} == set(kept.nodes)


@given(st.binary(min_size=32, max_size=32), st.sampled_from(Redemption), st.binary(max_size=40))
def test_messages_survive_the_codec_and_all_else_is_refused(token: bytes, outcome: Redemption, other: bytes) -> None:
    assert decode_redeem(encode_redeem(token)) == token
    assert decode_redemption(encode_redemption(outcome)) is outcome
    for decode, encode in ((decode_redeem, encode_redeem), (decode_redemption, encode_redemption)):
        try:
            said: Any = decode(other)
        except Invalid:
            continue
        assert encode(said) == other


def line(**more: Any) -> str:
    inviter = SigningKey(b"i" * 32)
    said = Invitation(
        network="village", by=inviter.did, expires_at="2036-01-01T00:00:00Z",
        **{"bootstrap": (f"/ip4/203.0.113.7/tcp/4150/p2p/{peer_of_did(inviter.did)}",), **more},
    )  # fmt: skip
    return write_invitation(said, inviter)


def test_a_line_with_a_token_says_how_many_and_where() -> None:
    read = read_invitation(line(token=TOKEN.hex(), uses=1), NOW)
    assert (read.token, read.uses, len(read.inviters())) == (TOKEN.hex(), 1, 1)
    assert read_invitation(line(), NOW).token is None
    for wrong in ({"token": TOKEN.hex()}, {"uses": 1}):
        with pytest.raises(Invalid, match="a token has a number of uses"):
            line(**wrong)
    with pytest.raises(Invalid, match="none of its addresses"):
        line(token=TOKEN.hex(), uses=1, bootstrap=(f"/ip4/203.0.113.7/tcp/1/p2p/{peer(1)}",))
