"""Defines a dataset of a repository: it is read, followed and held together as that of a node, without one.

Rows come from slices that were hashed, at a cut of a chain that was hashed. Whatever needs a node is refused by name.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, Final

from odfd_client.answer_stream import Answer
from odfd_client.datasets import Dataset, Snapshot
from odfd_client.errors import Invalid
from odfd_client.handovers import cross
from odfd_client.relations import CLAUSES, Demand, Selection
from odfd_client.slice_files import SliceFiles
from odfd_client.stored_chains import Cut
from odfd_client.stored_handovers import StoredHandovers
from odfd_client.stored_rows import (
    Chains,
    NoNode,
    StoredAnswer,
    StoredLog,
    check_there,
    describe_answer,
    find_block,
    refusal,
    rows_of_all,
    to_nanos,
    together,
)
from odfd_client.stored_slices import StoredSlices
from odfd_client.subscription import Source, Update, listen
from odfd_client.values import NodeMetadata, Pin, Position

_DID: Final = "did:"
_AS_OF, _AT_BLOCK, _AS_AT = CLAUSES


class StoredDataset(Dataset):
    """A dataset of a repository. Methods return a narrower selection; this one stays unchanged."""

    def __init__(
        self, chains: Chains, selection: Selection, pins: Sequence[Pin] = (), demand: Demand | None = None
    ) -> None:
        super().__init__(NoNode(chains.shown), selection, pins, demand)
        self._chains = chains
        if demand is not None and demand.require is not None:
            raise refusal("a requirement on data", "a node knows who attested it: odfctl mirror add")

    def files(self, *, keep: bool = False, offsets: tuple[int, int] | None = None) -> SliceFiles | None:  # noqa: ARG002
        asked = self._selection
        is_whole = not asked.current and asked.where is None and asked.limit is None
        if keep or not is_whole or any(words == _AS_AT for words, _ in asked.clauses):
            return None
        cuts = self.cuts()
        if len(cuts) > 1:
            return None
        (cut,) = cuts
        found = StoredSlices(self._chains.objects, cut, self._tell(cuts))
        check_there(asked.columns, found.schema)
        return found

    def cuts(self) -> list[Cut]:
        """Returns the parts of all chains that are read, of one time. Raises NotFound, Invalid."""
        times = {words: to_nanos(said) for words, said in self._selection.clauses if words == _AS_OF}
        if self._pins:
            chains = [self._chains.chain(pin.id) for pin in self._pins]
            return [Cut(chain, chain.block(pin.block), pin.id) for chain, pin in zip(chains, self._pins, strict=True)]
        name = self._selection.name
        collection = None if name.startswith(_DID) else self._chains.collection(name)
        if collection is not None:
            blocks = [said for words, said in self._selection.clauses if words == _AT_BLOCK]
            moments = [*times.values(), *map(collection.of_block, blocks)]
            return collection.cuts(min(moments, default=None))
        chain = self._chains.chain(name, times.get(_AS_OF))
        chain.id()  # so that the whole chain was read, from its head to the block that names the dataset
        head = chain.head()
        for words, said in self._selection.clauses:
            if words == _AT_BLOCK:
                head = find_block(chain, head, said)
        return [Cut(chain, chain.until(times[_AS_OF], head) if times else head)]

    def last_offset(self) -> int:
        cuts = self.cuts()
        self._tell(cuts)
        if len(cuts) > 1:
            raise Invalid(f"{self._selection.name} has {len(cuts)} shards, each with offsets of its own",
                          rule="query-pin", hint="chains() has each of them")  # fmt: skip
        return cuts[0].last_offset()

    def cross(
        self, after: Position | str | None = None, *, follow: bool = True, seconds: float = 60.0, progress: bool = False
    ) -> Any:
        self._check_whole()
        position = Position.parse(after) if isinstance(after, str) else after

        def log(dataset: str) -> Source:
            found = StoredLog(self._chains, replace(self._selection, name=dataset))
            found.together = not self._selection.name.startswith(_DID)
            return found

        switching = StoredHandovers(self._chains, self._selection)
        return cross(log, self._selection.name, switching, position, follow=follow, seconds=seconds, progress=progress)

    def listen(
        self, after: Position | str | None = None, *, follow: bool = True, seconds: float = 60.0
    ) -> Generator[Update, None, None]:
        """Yields rows as they appear, as a node's: the head is read every ``seconds``."""
        self._check_whole()
        position = Position.parse(after) if isinstance(after, str) else after
        return listen(StoredLog(self._chains, self._selection), position, follow=follow, seconds=seconds)

    def _subscribe(self, *, follow: bool, seconds: float) -> Generator[Snapshot | Update, None, None]:
        log = StoredDataset(self._chains, Selection(self._selection.name))
        parts = [(chain.pin, chain.last_offset()) for chain in log.chains()]
        position = Position.of([Position(pin.id, last, pin.block, pin.sequence_number) for pin, last in parts])
        yield Snapshot(self._make(replace(self._selection, current=True), log.pins, self._demand), position)
        yield from self.listen(position, follow=follow, seconds=seconds)

    def _make(self, selection: Selection, pins: Sequence[Pin], demand: Demand) -> Dataset:
        return StoredDataset(self._chains, selection, pins, demand)

    def _tell(self, cuts: Sequence[Cut]) -> NodeMetadata:
        clauses = ", ".join(f"{words} {said}" for words, said in self._selection.clauses)
        self._told = describe_answer(cuts, self._selection.name, clauses)
        self._pins = self._told.pins
        return self._told

    def _ask_metadata(self) -> NodeMetadata:
        return self._told or self._tell(self.cuts())

    def _ask(self, *, explain: bool = False, prove: bool = False) -> Answer:
        if prove:
            raise refusal("a proof of an answer", "a node signs it: connect().sql(…).prove()")
        cuts = self.cuts()
        metadata = self._tell(cuts)
        slices = together(self._chains.objects, cuts, metadata)
        return StoredAnswer(metadata, *rows_of_all(cuts, slices, self._selection, none=explain))
