"""Areas on cards: one text for each, and nothing that is not on Earth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.statements.area import Area

LONGITUDES, LATITUDES = (st.integers(-most * 1_000_000, most * 1_000_000) for most in (180, 90))
AREAS = st.tuples(LONGITUDES, LATITUDES, LONGITUDES, LATITUDES).map(
    lambda each: Area(each[0], min(each[1], each[3]), each[2], max(each[1], each[3]))
)


@given(AREAS)
def test_an_area_is_read_as_it_was_written(area: Area) -> None:
    text = str(area)
    assert Area.parse(text) == area
    assert len(text) <= 64, "the room that a card has"
    assert Area.parse(", ".join(text.split(","))) == area, "people write spaces"
    assert all(part.west <= part.east for part in area.parts)
    assert (len(area.parts) == 2) is (area.west > area.east)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("15.35,47.00,15.54,47.14", "15.35,47,15.54,47.14"),
        ("-9.230000, 38.69, -009.09, 38.8", "-9.23,38.69,-9.09,38.8"),
        ("-0,0,-0.0,0", "0,0,0,0"),
        ("178,-20,-178,-15", "178,-20,-178,-15"),
    ],
)
def test_every_spelling_has_one_text(text: str, written: str) -> None:
    assert str(Area.parse(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "15",
            "1,2,3",
            "1,2,3,4,5",
            "1,2,3,",
            "W,S,E,N",
            "nan,nan,nan,nan",
            "inf,0,1,1",
            "1e1,0,1,1",
            "0x1,0,1,1",
        ),
        *("181,0,1,1", "0,-91,1,1", "0,0,1,90.000001", "47.00,15.35,47.14,195", "0,2,1,1", "1.1234567,0,2,1"),
        *("+1,0,2,1", ".5,0,1,1", "1.,0,2,1", "1_0,0,20,1", "\N{ARABIC-INDIC DIGIT ONE},0,2,1", "1;0;2;1"),
        ",".join(["0" * 99] * 4),
    ],
)
def test_what_is_no_area_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as told:
        Area.parse(text)
    assert told.value.rule == "card-area"
    assert told.value.hint
