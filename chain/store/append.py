"""Checks what every store requires of an append: intact blocks that follow the head, and objects that are present."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from chain.errors import Conflict, Invalid, NotFound
from chain.model.block import Block, SealedBlock
from chain.multihash import Multihash
from chain.store.base import Append, Head, ObjectStore, Rewrite
from chain.wording import plural

AnyBlock = TypeVar("AnyBlock", Block, SealedBlock, Block | SealedBlock)


def check_append(append: Append, objects: ObjectStore) -> Head:
    """Returns the head after the append. Raises Invalid: no blocks, not in sequence, not linked, an object missing."""
    place = append.dataset.short
    if not append.blocks:
        if append.upper is None or append.upper.new is None or append.expected is None:
            raise Invalid("an append without blocks", rule="append-empty", place=place)
        return append.expected
    if not _is_sealed_run(append.expected, append.blocks):
        for _ in following(append.expected, append.blocks, place):
            pass
    check_objects(append.objects, objects, place)
    return Head(append.blocks[-1].hash, append.blocks[-1].sequence_number)


def _is_sealed_run(head: Head | None, blocks: Sequence[Block | SealedBlock]) -> bool:
    """Whether thousands of sealed blocks follow each other, judged by their columns.

    They were hashed a moment ago, when they were sealed; so only the last one is hashed again, and the links lead from
    it to the others.
    """
    if not all(type(block) is SealedBlock for block in blocks):
        return False
    first = head.size if head else 0
    if [block.sequence_number for block in blocks] != list(range(first, first + len(blocks))):
        return False
    names = [head.hash if head else None, *[block.hash for block in blocks]]
    if [block.prev_block_hash for block in blocks] != names[:-1]:
        return False
    return Multihash.sha3_256(blocks[-1].raw) == blocks[-1].hash


def check_rewrite(rewrite: Rewrite, objects: ObjectStore) -> None:
    """Raises Invalid if nothing would be kept, more would be kept than there is, or an object is missing."""
    if not 1 <= rewrite.keep <= rewrite.expected.size:
        raise Invalid(
            f"a rewrite that keeps {rewrite.keep} of {plural(rewrite.expected.size, 'block')}",
            rule="rewrite-keep",
            hint="the Seed at least stays: with another one it is another dataset",
            place=rewrite.dataset.short,
        )
    check_objects(rewrite.objects, objects, rewrite.dataset.short)


def check_changed(rewrite: Rewrite, head: Head) -> None:
    """Raises Invalid if the rewrite gives the same history again."""
    if head == rewrite.expected:
        raise Invalid("the rewrite changes nothing", rule="rewrite-no-op", place=rewrite.dataset.short)


def following(head: Head | None, blocks: Iterable[AnyBlock], place: str) -> Iterator[AnyBlock]:
    """Yields the blocks, each checked to follow the one before. Raises Invalid."""
    for block in blocks:
        _check_follows(head, block, place)
        head = Head(block.hash, block.sequence_number)
        yield block


def check_objects(names: Iterable[Multihash], objects: ObjectStore, place: str) -> None:
    """Raises Invalid when one of the objects is not in the store."""
    for name in objects.missing(names):
        raise Invalid(
            f"object {name.short} is not in the store",
            rule="object-missing",
            hint="objects come before the blocks that name them",
            place=place,
        )


def _check_follows(head: Head | None, block: Block | SealedBlock, place: str) -> None:
    expected = (head.sequence_number + 1, head.hash) if head else (0, None)
    if (block.sequence_number, block.prev_block_hash) != expected:
        after = f"#{head.sequence_number} {head.hash.short}" if head else "the beginning"
        names = block.prev_block_hash.short if block.prev_block_hash else "nothing"
        raise Invalid(
            f"block #{block.sequence_number}, which names {names} before it, does not follow {after}",
            rule="block-follows",
            hint="read the head again and plan again",
            place=place,
        )
    if Multihash.sha3_256(block.raw) != block.hash:
        raise Invalid(f"block #{block.sequence_number} is not what its hash says", rule="block-hash", place=place)


def check_expected(append: Append | Rewrite, actual: Head | None) -> None:
    """Raises Conflict unless the chain's head is the one that the append was planned on."""
    if actual == append.expected:
        return
    now = f"at #{actual.sequence_number} {actual.hash.short}" if actual else "without blocks"
    then = f"#{append.expected.sequence_number} {append.expected.hash.short}" if append.expected else "a new chain"
    raise Conflict(
        f"the chain is {now}, the append was planned on {then}",
        rule="compare-and-append",
        hint="read the head again and plan again",
        place=append.dataset.short,
    )


def check_distinct(appends: Sequence[Append]) -> None:
    """Raises Invalid when one commit names a chain twice, since their order would be undefined."""
    if len({append.dataset for append in appends}) != len(appends):
        raise Invalid("one commit appends twice to a chain", rule="append-distinct")


BLOCK_UNKNOWN: Final = "block-unknown"


def no_block(what: str) -> NotFound:
    hint = "odfctl log lists those that are there; where one should be, odfctl verify shows what is damaged"
    return NotFound(f"no block {what}", rule=BLOCK_UNKNOWN, hint=hint)
