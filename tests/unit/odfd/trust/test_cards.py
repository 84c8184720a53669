"""Cards: what they must be, which one of several is kept, when one is signed anew, and what is found by words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import card as cards
from chain.statements import envelope, statement
from chain.statements.authority import implicit
from chain.statements.card import Card, CardColumn, CardSample, ChainFacts, PublisherClaims
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.store.database import Database, open_database
from odfd.network.card_index import CardIndex, CardQuery
from odfd.services.publishing.card_drafts import COUNTED, LEAST, MAX_PAYLOAD, RENEWED, due, fit
from odfd.store.ledger.cards import Cards
from odfd.store.ledger.log import STEPS
from odfd.trust.admission.rules import AdmissionOutcome, admit_card

OWNER, NODE, STRANGER = SigningKey(b"d" * 32), SigningKey(b"n" * 32), SigningKey(b"s" * 32)
NOW = instant.parse("2026-11-20T08:00:00Z")
DAY = 86400 * instant.SECOND
V0 = implicit(OWNER.dataset_id)
V1 = msgspec.structs.replace(V0, version=1, writers={NODE.did: Instant(NOW + 100 * DAY)})
FACTS = ChainFacts(
    kind="root",
    records=7,
    created_at="2026-01-01T00:00:00Z",
    updated_at="2026-11-19T00:00:00Z",
    description="Fine dust over the city of Graz, by hour",
    keywords=("air", "pm10"),
    license="CC-BY-4.0",
    columns=(CardColumn(name="Station", type="String"), CardColumn(name="pm10", type="Float64")),
)


def made(
    seconds: int = 0,
    key: SigningKey = OWNER,
    version: int = 0,
    days: int = 90,
    owner: SigningKey = OWNER,
    name: str = "dust",
    **facts: Any,
) -> Card:
    at = Instant(NOW + seconds * instant.SECOND)
    return Card(
        dataset=owner.dataset_id,
        author=key.did,
        authority=version,
        epoch=0,
        size=4,
        issued_at=statement.when(at),
        expires_at=statement.when(Instant(at + days * DAY)),
        chain=msgspec.structs.replace(FACTS, **facts),
        claims=PublisherClaims(name=name, publisher="Graz"),
        head=Multihash.sha3_256(b"block"),
    )


def showing(*towns: str) -> Card:
    return msgspec.structs.replace(made(), sample=CardSample(columns=(0,), rows=tuple((town,) for town in towns)))


def saying(seconds: int = 0, **words: str) -> Card:
    """A card with the publisher's words about the dataset."""
    card = made(seconds)
    assert card.claims is not None
    return msgspec.structs.replace(card, claims=msgspec.structs.replace(card.claims, **words))


def withdrawn(seconds: int = 0, owner: SigningKey = OWNER) -> Card:
    return msgspec.structs.replace(made(seconds, owner, owner=owner), chain=None, claims=None)


def signed(card: Card, key: SigningKey | None = None) -> Signed:
    key = key or next(each for each in (OWNER, NODE, STRANGER) if each.did == card.author)
    return envelope.unseal(envelope.seal(statement.encode(card), key), card.MAX_ENVELOPE)


@pytest.mark.parametrize(
    ("card", "outcome"),
    [
        (made(), AdmissionOutcome.NEW),
        (withdrawn(), AdmissionOutcome.NEW),
        (made(601), AdmissionOutcome.EARLY),
        (made(days=91), AdmissionOutcome.REJECTED),
        (made(days=0), AdmissionOutcome.REJECTED),
        (made(key=STRANGER), AdmissionOutcome.REJECTED),
        (made(key=NODE, version=1), AdmissionOutcome.NEW),
        (made(key=OWNER, version=1), AdmissionOutcome.UNKNOWN_AUTHORITY),
        (made(key=NODE, version=2), AdmissionOutcome.UNKNOWN_AUTHORITY),
    ],
)
def test_admission(card: Card, outcome: AdmissionOutcome) -> None:
    assert admit_card(card, signed(card), [V0, V1], NOW, is_news=True).outcome is outcome


def test_a_card_in_the_name_of_another_writer_is_refused() -> None:
    """Attack T-CARD-01: a card, or a withdrawal, of another's dataset.

    Defence: only a writer's signature counts, under the version of the authority that it names.
    """
    card = made()
    for forged in (card, withdrawn()):
        found = admit_card(forged, signed(forged, STRANGER), [V0], NOW, is_news=True)
        assert found.outcome is AdmissionOutcome.REJECTED
    assert admit_card(card, signed(card), [V0], NOW, is_news=False).outcome is AdmissionOutcome.OLDER


@pytest.mark.parametrize(
    "wrong", [{"chain": None}, {"claims": None}, {"size": 0}, {"expires_at": "2026-13-01T00:00:00Z"}]
)
def test_what_does_not_fit_together_is_invalid(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        statement.decode_any(statement.encode(msgspec.structs.replace(made(), **wrong)))


SHOWN = CardSample(columns=(0, 1), rows=(("Graz", "7"), ("Linz", False)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": (1, 0)},
        {"columns": (0, 0)},
        {"columns": (0, 2)},
        {"columns": (0,)},
        {"rows": (("Graz",),)},
        {"rows": (("Graz", True),)},
        {"rows": (("Graz", "x" * (cards.MAX_CELL + 1)),)},
        {"rows": (("Graz", "7"),) * (cards.MAX_SAMPLE + 1)},
    ],
)
def test_a_sample_that_does_not_fit_its_card_is_invalid(wrong: dict[str, Any]) -> None:
    whole = msgspec.structs.replace(made(), sample=SHOWN)
    assert statement.decode_any(statement.encode(whole)) == whole
    damaged = msgspec.structs.replace(whole, sample=msgspec.structs.replace(SHOWN, **wrong))
    with pytest.raises(Invalid):
        statement.decode_any(statement.encode(damaged))
    with pytest.raises(Invalid):
        statement.decode_any(statement.encode(msgspec.structs.replace(whole, chain=None, claims=None)))


WORDS = {"title": "Fine dust of Graz", "place": "Graz, Austria", "area": "15.35,47,15.54,47.14", "frequency": "hourly"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"title": "\x1b[2Jdust"},
        {"title": "\u202edust"},
        {"title": "du\u200bst"},
        {"title": "dust\nstanding  reproduced"},
        {"title": " dust"},
        {"title": "dust  of Graz"},
        {"title": "did:odf:fed01"},
        {"title": "x" * (cards.MAX_NAME + 1)},
        {"place": "\x9b31m"},
        {"place": "x" * (cards.MAX_NAME + 1)},
        {"area": "nan,nan,nan,nan"},
        {"area": "NaN,0,1,1"},
        {"area": "inf,0,1,1"},
        {"area": "181,0,1,1"},
        {"area": "0,-91,1,1"},
        {"area": "0,2,1,1"},
        {"area": "1,2,3"},
        {"area": "15.350,47,15.54,47.14"},
        {"area": "15.35, 47, 15.54, 47.14"},
        {"area": "0" * 99},
        {"frequency": "Daily"},
        {"frequency": "x" * 33},
        {"frequency": "daily\n"},
    ],
)
def test_hostile_words_on_a_card_make_it_invalid(wrong: dict[str, str]) -> None:
    """Attack T-CARD-03: words on a card that steer a terminal or a page, imitate another line, look like an id, or
    state an area that is none (NaN, not on Earth, two spellings of one).

    Defence: such a card is invalid, and its publisher's node refuses the words before it stores them.
    """
    whole = saying(**WORDS)
    assert statement.decode_any(statement.encode(whole)) == whole
    with pytest.raises(Invalid):
        statement.decode_any(statement.encode(saying(**{**WORDS, **wrong})))


def test_words_of_a_later_version_are_taken() -> None:
    later = saying(frequency="fortnightly")
    assert statement.decode_any(statement.encode(later)) == later


@pytest.mark.parametrize(
    "times",
    [
        {"first_event": "2024-02-01T00:00:00Z", "last_event": "2024-01-01T00:00:00Z"},
        {"first_event": "2024-02-01T00:00:00Z"},
        {"first_event": "2024-02-31T00:00:00Z", "last_event": "2024-03-01T00:00:00Z"},
        {"last_event": "+12024-03-01T00:00:00Z"},
        {"update_interval": -1},
        {"update_interval": 2**53},
        {"bytes": -1},
    ],
)
def test_impossible_times_on_a_card_make_it_invalid(times: dict[str, Any]) -> None:
    """Attack T-CARD-03: event times or an interval on a card that no chain can have.

    Defence: whole seconds of years of four digits, in order; integers below 2^53.
    """
    with pytest.raises(Invalid):
        statement.decode_any(statement.encode(made(**times)))


def test_a_card_too_large_for_its_words_goes_without_and_one_too_large_whatever_is_left_out_ends() -> None:
    globe = "\N{EARTH GLOBE EUROPE-AFRICA}"
    keys = b"".join(SigningKey(bytes([place]) * 32).public for place in range(1, cards.MAX_SHARDS))
    shards = cards.CardShards(
        function="xxhash64", by=tuple(f"{place:064}" for place in range(16)), keys=OWNER.public + keys
    )
    card = msgspec.structs.replace(
        saying(title=globe * 128, place=globe * 100, area=WORDS["area"], name=globe * 128, publisher=globe * 20),
        shards=shards,
    )
    short = fit(card)
    assert len(statement.encode(short)) <= MAX_PAYLOAD
    assert short.claims is not None
    assert (short.claims.title, short.claims.place, short.claims.area) == ("", globe * 100, WORDS["area"])
    assert card.chain is not None
    facts = msgspec.structs.replace(card.chain, license_url="https://" + globe * 240, portal=globe * 250)
    with pytest.raises(Invalid):
        signed(fit(msgspec.structs.replace(card, chain=facts)))


def test_a_sample_larger_than_a_card_is_refused_and_none_is_signed() -> None:
    """Attack T-CARD-03: a sample larger than a card, or that does not fit the card's columns.

    Defence: such a card is invalid, and its publisher's node signs none: rows without room are left out and counted.

    Each part is within its limits, and yet the whole is not: the publisher cuts it, and readers refuse it.
    """
    columns = tuple(CardColumn(name=f"c{place}", type="String") for place in range(cards.MAX_COLUMNS))
    row = ("\u202e" * cards.MAX_CELL,) * cards.MAX_COLUMNS
    sample = CardSample(columns=tuple(range(cards.MAX_COLUMNS)), rows=(row,) * cards.MAX_SAMPLE)
    card = msgspec.structs.replace(made(columns=columns), sample=sample)
    with pytest.raises(Invalid):
        envelope.unseal(envelope.seal(statement.encode(card), OWNER), Card.MAX_ENVELOPE)
    kept = fit(card).sample
    assert kept == CardSample(left_out=cards.MAX_SAMPLE)
    few = msgspec.structs.replace(sample, rows=(row, ("x",) * cards.MAX_COLUMNS))
    kept = fit(msgspec.structs.replace(card, sample=few)).sample
    assert kept is not None
    assert (kept.rows, kept.left_out) == (few.rows[1:], 1), "a row that does not fit does not keep out another"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with closing(open_database(tmp_path_factory.mktemp("cards") / "odfd.sqlite")) as opened:
        opened.migrate("trust", STEPS)
        yield opened


def keep(database: Database, *heard: Card, fresh: bool = True) -> Card | None:
    with database.write() as connection:
        if fresh:
            connection.execute("DELETE FROM trust_cards")
        store = Cards(connection)
        for card in heard:
            key = STRANGER if card.dataset == STRANGER.dataset_id else None
            if store.is_news(card, signed(card, key).sid):
                store.keep(card, signed(card, key), "new", "", NOW)
        return store.of(OWNER.dataset_id)


HEARD = [made(), made(name="other"), made(5), withdrawn(5), made(key=NODE, version=1), made(9, records=8)]


@pytest.mark.slow
@given(st.permutations([*HEARD, HEARD[0]]))
def test_order_and_repetition_change_nothing(database: Database, heard: list[Card]) -> None:
    """Attack T-CARD-01: a removed writer that still publishes cards.

    Defence: the first card under the next version outranks all under older ones, whatever their dates.
    """
    kept = keep(database, *heard)
    assert kept is not None
    assert (kept.authority, kept.author) == (1, NODE.did), "the newest version overrules what an older one says later"
    assert keep(database, *heard[::-1]) == kept


@pytest.mark.slow
@given(st.permutations([each for each in HEARD if not each.authority]))
def test_of_one_version_the_latest_holds(database: Database, heard: list[Card]) -> None:
    kept = keep(database, *heard)
    assert kept is not None
    assert kept.issued == NOW + 9 * instant.SECOND


@pytest.mark.parametrize(
    ("before", "after", "at"),
    [
        (None, made(), 0),
        (withdrawn(), made(5), 0),
        (made(), withdrawn(5), 0),
        (made(), made(5, key=NODE, version=1), 0),
        (made(), made(5, description="New"), NOW + LEAST),
        (made(), made(5, name="new"), NOW + LEAST),
        (made(records=0), made(5, records=1), NOW + LEAST),
        (made(records=900), made(5, records=1_001), NOW + LEAST),
        (made(records=1_001), made(5, records=900), NOW + LEAST),
        (made(records=900), made(5, records=1_000), NOW + COUNTED),
        (made(), msgspec.structs.replace(made(5), epoch=1), NOW + LEAST),
        (made(), msgspec.structs.replace(made(5), size=5), NOW + COUNTED),
        (made(), made(5), NOW + RENEWED),
        (made(), showing("Graz"), NOW + LEAST),
        (showing("Graz"), made(5), NOW + LEAST),
        (showing("Graz"), showing("Graz", "Linz"), NOW + LEAST),
        (showing("Graz"), showing("Linz"), NOW + COUNTED),
        (showing("Graz"), showing("Graz"), NOW + RENEWED),
        (made(), saying(5, title="Fine dust"), NOW + LEAST),
        (saying(area="1,2,3,4"), made(5), NOW + LEAST),
        (saying(title="Fine dust"), saying(5, title="Fine dust"), NOW + RENEWED),
        (made(), made(5, first_event="2024-01-01T00:00:00Z", last_event="2024-02-01T00:00:00Z"), NOW + COUNTED),
        (made(update_interval=60), made(5, update_interval=61), NOW + COUNTED),
        (made(bytes=60), made(5, bytes=61), NOW + COUNTED),
    ],
)
def test_when_a_card_is_signed_anew(before: Card | None, after: Card, at: int) -> None:
    assert due(before, after) == at


TEXT = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=cards.MAX_DESCRIPTION)
CELL = st.one_of(st.just(False), st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=cards.MAX_CELL))
LABEL = st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1, max_size=cards.MAX_WORD)


@pytest.mark.slow
@given(
    description=TEXT,
    keywords=st.lists(LABEL, max_size=cards.MAX_KEYWORDS),
    columns=st.lists(st.builds(CardColumn, name=LABEL, type=LABEL), max_size=cards.MAX_COLUMNS),
    name=st.text(min_size=1, max_size=cards.MAX_NAME, alphabet="\U0001f30d"),
    rows=st.lists(st.lists(CELL, min_size=3, max_size=3), max_size=cards.MAX_SAMPLE),
)
def test_every_card_fits(
    description: str, keywords: list[str], columns: list[CardColumn], name: str, rows: list[list[str | bool]]
) -> None:
    card = made(description=description, keywords=tuple(keywords), columns=tuple(columns), name=name)
    places = tuple(range(min(len(columns), 3)))
    sample = CardSample(columns=places, rows=tuple(tuple(row[: len(places)]) for row in rows))
    card = msgspec.structs.replace(card, sample=sample)
    short = fit(card)
    assert len(statement.encode(short)) <= MAX_PAYLOAD
    assert len(signed(short).envelope) <= Card.MAX_ENVELOPE
    assert statement.decode_any(statement.encode(short)) == short
    assert short.chain is not None
    assert len(short.chain.columns) + short.chain.more_columns == len(columns)
    assert short.sample is not None
    assert short.sample.total == len(rows)
    if len(statement.encode(card)) <= MAX_PAYLOAD - 32:
        assert short == (
            card if places and rows else msgspec.structs.replace(card, sample=CardSample(left_out=len(rows)))
        )


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (CardQuery(words="dust"), True),
        (CardQuery(words="GRAZ fine"), True),
        (CardQuery(words="gra hou"), True),
        (CardQuery(words="dust snow"), False),
        (CardQuery(words="PARTICULATE styr"), True),
        (CardQuery(words="pm10 stat"), True),
        (CardQuery(words='"; DROP TABLE words; -- NEAR('), False),
        (CardQuery(words="' * OR \" "), False),
        (CardQuery(words="***"), True),
        (CardQuery(license="cc-by-4.0"), True),
        (CardQuery(license="CC0"), False),
        (CardQuery(column="station"), True),
        (CardQuery(column="sta"), False),
        (CardQuery(column="%"), False),
        (CardQuery(updated_after=Instant(NOW - 2 * DAY)), True),
        (CardQuery(updated_after=NOW), False),
        (CardQuery(), True),
    ],
)
def test_what_is_found(database: Database, query: CardQuery, found: bool) -> None:
    """Attack T-CARD-03: search words that contain SQL, or the index's query language.

    Defence: words are letters and digits, each quoted.
    """
    keep(database, saying(title="Particulate matter", place="Styria"))
    cards_, known = CardIndex([database.read]).search(query, NOW)
    assert [card.dataset for card in cards_] == [OWNER.dataset_id] * found
    assert known == 1


def test_the_index_follows_what_is_kept(database: Database) -> None:
    index = CardIndex([database.read])

    def names(at: Instant = NOW) -> list[str]:
        return [card.claims.name for card in index.search(CardQuery(), at)[0] if card.claims is not None]

    keep(database, made(), made(key=STRANGER, owner=STRANGER, name="D-u Ｓt"))
    assert sorted(names()) == ["D-u Ｓt", "dust"]
    keep(database, made(7, name="air"), fresh=False)
    assert sorted(names()) == ["D-u Ｓt", "air"]
    keep(database, withdrawn(8), fresh=False)
    assert names() == ["D-u Ｓt"]
    assert names(Instant(NOW + 91 * DAY)) == [], "it has expired"


@pytest.mark.parametrize(
    ("name", "alike"),
    [("D-u Ｓt", 1), ("DUST", 1), ("dúst", 1), ("dusk", 0), ("du\u0455t", 1), ("\u217eust", 1), ("dvst", 0)],
)
def test_names_that_look_alike_are_counted(database: Database, name: str, alike: int) -> None:
    """Attack T-CARD-02: a name that looks like another's.

    Defence: names are compared without width, case, marks and punctuation: equal ones are shown as namesakes, with
    publisher and id.
    """
    keep(database, made(), made(key=STRANGER, owner=STRANGER, name=name))
    index = CardIndex([database.read])
    index.search(CardQuery(), NOW)
    assert index.namesakes(made()) == alike


@pytest.mark.parametrize(
    ("mine", "theirs", "alike"),
    [
        ("Fine dust of Graz", "Fine dust \u043ef Graz", 1),
        ("", "dvst", 0),
        ("", "du\u0455t", 1),
        ("Fine dust", "Snow", 0),
        ("", "", 0),
    ],
)
def test_titles_that_look_like_a_name_or_a_title_are_counted(
    database: Database, mine: str, theirs: str, alike: int
) -> None:
    """Attack T-CARD-02: a title that looks like another's name or title.

    Defence: it is counted as a namesake of both, by the rules for names.

    Whoever takes another's title, or its name as a title, is counted as a namesake of both.
    """
    other = made(key=STRANGER, owner=STRANGER, name="other")
    assert other.claims is not None
    other = msgspec.structs.replace(other, claims=msgspec.structs.replace(other.claims, title=theirs))
    keep(database, saying(title=mine), other)
    index = CardIndex([database.read])
    index.search(CardQuery(), NOW)
    assert (index.namesakes(saying(title=mine)), index.namesakes(other)) == (alike, alike)


def test_a_card_of_as_many_shards_as_there_may_be_fits() -> None:
    keys = b"".join(SigningKey(bytes([place]) * 32).public for place in range(1, cards.MAX_SHARDS))
    by = tuple(f"{place:064}" for place in range(cards.MAX_BY))
    shards = cards.CardShards(function="xxhash64", by=by, keys=OWNER.public + keys)
    found = fit(msgspec.structs.replace(made(), shards=shards))
    assert len(statement.encode(found)) <= MAX_PAYLOAD
    assert found.shards == shards
    assert found.shards.ids[0] == OWNER.dataset_id
    assert statement.decode_any(statement.encode(found)) == found
    assert due(made(), found) == made().issued + LEAST, "who divides a collection differently says so soon"


@pytest.mark.parametrize("keys", [b"", OWNER.public, OWNER.public * 2, OWNER.public + b"short", b"x" * 64])
def test_cards_with_impossible_shards_are_refused(keys: bytes) -> None:
    said = msgspec.structs.replace(made(), shards=cards.CardShards(function="xxhash64", by=("a",), keys=keys))
    with pytest.raises(Invalid):
        statement.decode_any(statement.encode(said))
