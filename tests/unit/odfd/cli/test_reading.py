"""What is said beside rows that are shown."""

from odfd.cli.commands.reading import doubt_of

DATASET = {"name": "cities", "blocks": 8}


def test_rows_that_may_be_relied_on_need_no_word() -> None:
    assert doubt_of(DATASET) is None
    assert doubt_of({**DATASET, "relyOn": {"blocks": 8, "fact": "data"}}) is None


def test_a_reader_is_told_how_far_rows_may_be_relied_on() -> None:
    refuted = {**DATASET, "relyOn": {"blocks": 7, "fact": "refuted at #7"}}
    assert doubt_of(refuted) == "Of its 8 blocks rely on the first 7 (refuted at #7): odfctl trust show cities"
    assert doubt_of({**DATASET, "relyOn": {"blocks": 0, "fact": ""}}) == (
        "Of its 8 blocks rely on none: odfctl trust show cities"
    )
