"""Collects the statements published next to a dataset's blocks: its newest signed head, and the authority versions."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.statement import HeadStatement
from chain.store.base import ChainStore
from chain.store.database import Database
from chain.store.files import disk, make_folder
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import Ledger

TRUST: Final = "trust"
SIGNED_HEAD: Final = f"{TRUST}/head"
MAX_AUTHORITIES: Final = 256
"""Most versions of an authority (docs/spec/trust.md#authorities)."""
MAX_STATEMENT: Final = 64 << 10


def authority_file(version: int) -> str:
    return f"{TRUST}/authority-{version}"


class Signed(NamedTuple):
    """The signed state of one dataset. An unsigned one has no ``files``."""

    size: int
    """Number of blocks up to the head."""
    head: Multihash
    files: tuple[tuple[str, bytes], ...]
    """Statements by their path in the layout; the head last."""
    is_here: bool
    """Whether the blocks of the head are here."""


def signed_state(database: Database, chains: ChainStore, dataset: DatasetId) -> Signed:
    """Returns the signed state of a dataset. Raises NotFound when no block of it is here."""
    chain = chains.chain(dataset)
    here = chain.head()
    if here is None:
        raise NotFound(f"no block of {dataset.short} is here", rule="dataset-unknown", hint="odfctl get datasets")
    with database.read() as connection:
        newest = Ledger(connection).newest_head(dataset)
        versions = Authorities(connection).versions(dataset)
    if newest is None:
        return Signed(here.size, here.hash, (), is_here=True)
    head, signed = newest
    walk = [(authority_file(said.version), each.envelope) for said, each in versions]
    is_here = head.size <= here.size and chain.block_at(head.size - 1).hash == head.head
    return Signed(head.size, head.head, (*walk, (SIGNED_HEAD, signed.envelope)), is_here)


def read_statements(folder: Path) -> tuple[bytes, ...]:
    """Reads the statements of a folder, the head last; none for an unsigned one. Raises Invalid, Environment."""
    raw = _read(folder, SIGNED_HEAD)
    if raw is None:
        return ()
    head = head_in(raw, str(folder))
    walk = [_read(folder, authority_file(version)) for version in range(1, head.authority + 1)]
    if None in walk:
        file = authority_file(walk.index(None) + 1)
        raise Invalid(f"{folder} has no {file}, which its head names", rule="published-tree", hint="export it anew")
    return (*[each for each in walk if each is not None], raw)


def head_in(raw: bytes, root: str) -> HeadStatement:
    """Decodes the signed head published under ``root``. Raises Invalid."""
    head = statement.decode_any(envelope.unseal(raw, statement.MAX_ANY).payload)
    if not isinstance(head, HeadStatement) or head.authority > MAX_AUTHORITIES:
        raise Invalid(f"{SIGNED_HEAD} under {root} is not a signed head", rule="published-tree")
    return head


def _read(folder: Path, file: str) -> bytes | None:
    path = folder / file
    if not path.is_file():
        return None
    with disk(path), path.open("rb") as opened:
        return opened.read(statement.MAX_ANY + 1)


def write_statements(folder: Path, signed: Signed) -> None:
    """Writes statements next to a dataset's folders, each file under a staging name first. Raises Environment."""
    if signed.files:
        make_folder(folder / TRUST)
    for path, raw in signed.files:
        target = folder / path
        staged = target.with_name("." + target.name)
        with disk(target):
            staged.write_bytes(raw)
            staged.rename(target)
