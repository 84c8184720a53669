"""What is said beside rows that are shown."""

from odfd.cli.commands.reading import doubt_of, remarks_on
from odfd.control import wire


def cities(rely_on: wire.Reliance | None = None) -> wire.DatasetView:
    return wire.DatasetView(name="cities", id="did:odf:fed01", kind="root", blocks=8, rely_on=rely_on)


def test_rows_that_may_be_relied_on_need_no_word() -> None:
    assert doubt_of(cities()) is None
    assert doubt_of(cities(wire.Reliance(blocks=8, fact="data"))) is None


def test_a_reader_is_told_how_far_rows_may_be_relied_on() -> None:
    refuted = cities(wire.Reliance(blocks=7, fact="refuted at #7"))
    assert doubt_of(refuted) == "Of its 8 blocks rely on the first 7 (refuted at #7): odfctl trust show cities"
    assert doubt_of(cities(wire.Reliance(blocks=0))) == ("Of its 8 blocks rely on none: odfctl trust show cities")


def test_that_there_are_no_rows_is_said() -> None:
    doubted = cities(wire.Reliance(blocks=0))
    assert list(remarks_on(wire.Records(columns=(), rows=(), dataset=cities()))) == ["no records yet"]
    assert list(remarks_on(wire.Records(columns=(), rows=((1,),), dataset=cities()))) == []
    assert list(remarks_on(wire.Records(columns=(), rows=((1,),), dataset=doubted))) == [doubt_of(doubted)]
