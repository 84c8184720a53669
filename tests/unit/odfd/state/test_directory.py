"""What the state directory tells of itself."""

from __future__ import annotations

from pathlib import Path

from odfd.store.directory import DATABASE, open_state_directory


def test_the_size_of_the_database_has_what_its_log_has(tmp_path: Path) -> None:
    """What is new is in the log alone until a checkpoint: a node of a megabyte said that it had 4 kB."""
    with open_state_directory(tmp_path / "state") as home:
        before = home.database_size()
        with home.database.write() as connection:
            connection.execute("CREATE TABLE large (content)")
            connection.execute("INSERT INTO large VALUES (zeroblob(1000000))")
        assert home.database_size() - before >= 1_000_000
    assert (tmp_path / "state" / DATABASE).stat().st_size > 1_000_000, "the end of the block leaves no log"


def test_copies_of_collections_that_several_nodes_ingested_are_removed_and_told(tmp_path: Path) -> None:
    with open_state_directory(tmp_path / "state") as home:
        assert home.recovery.converted == ()
    for each in ("one", "two"):
        (tmp_path / "state" / "reclock" / each / "objects").mkdir(parents=True)
        (tmp_path / "state" / "reclock" / each / "chains.sqlite").write_bytes(b"x")
    with open_state_directory(tmp_path / "state") as home:
        (line,) = home.recovery.converted
        assert line.startswith("2 copies of collections that several nodes ingested (reclock/) were removed")
    assert not (tmp_path / "state" / "reclock").exists()
