"""Asks a public witness to cosign a tree of this node: one tree, one witness, a few requests. Sans-IO.

A request names the size that the witness is believed to have cosigned last; if that is wrong, the witness answers with
the right one, and the next request proves consistency from there. A cosignature counts once it verifies under the
configured key. A witness that refuses a tree is asked again after a long pause.
Spec: c2sp.org/tlog-witness; docs/spec/trust.md#witnesses; ADR 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.instant import Instant
from chain.statements import cosignature, submission
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.submission import Submission
from chain.wording import plural
from odfd.policy.witness_quorum import PublicWitness

MAX_CONFLICTS: Final = 2
"""Times in a row that a witness may name another size than expected; another of our machines may be asking it too."""
SOON: Final = 60.0
"""Seconds until a witness that gave no readable answer is asked again; doubles each time."""
LATE: Final = 3600.0
"""Seconds until a witness that refuses is asked again; a person has to change something there, or here."""
LONGEST: Final = 6 * 3600.0
"""Seconds of the longest pause."""
_OK, _CONFLICT = 200, 409
_REFUSED: Final = {
    400: "it cannot read the request",
    403: "it does not know the key that signs this log",
    404: "it does not know this log",
    422: "the proof does not join this tree to what it cosigned last: it may have been shown another history",
}


class SubmissionRequest(msgspec.Struct, frozen=True):
    """Asks the driver to send this to the witness and to pass its answer on."""

    body: bytes


class SubmissionAccepted(msgspec.Struct, frozen=True):
    """The witness cosigned."""

    made: Cosignature


class SubmissionFailed(msgspec.Struct, frozen=True):
    """The witness did not cosign: the reason, and the seconds until it is asked again."""

    message: str
    again: float = LATE


Effect: TypeAlias = SubmissionRequest | SubmissionAccepted | SubmissionFailed


class Submitter:
    """Requests one cosignature. ``prove`` returns the consistency proof from a size on to the tree's."""

    def __init__(
        self,
        witness: PublicWitness,
        tree: TreeCheckpoint,
        line: str,
        old: int,
        prove: Callable[[int], Sequence[bytes]],
        latest: Instant,
    ) -> None:
        """``line``: the log's signature. ``old``: the witness's last known size.
        ``latest``: latest time of a cosignature."""
        self._latest = latest
        self._witness = witness
        self._tree = tree
        self._line = line
        self._old = old
        self._prove = prove
        self._conflicts = 0

    def start(self) -> Effect:
        return self._post()

    def handle(self, status: int, body: bytes) -> Effect:
        if status == _OK:
            return self._read_cosigned(body)
        if status == _CONFLICT:
            return self._conflict(body)
        if status in _REFUSED:
            return SubmissionFailed(f"{_REFUSED[status]} (status {status})")
        return SubmissionFailed(f"it answers with status {status}", SOON)

    def _post(self) -> SubmissionRequest:
        proof = tuple(self._prove(self._old)) if self._old else ()
        return SubmissionRequest(Submission(old=self._old, proof=proof, tree=self._tree, lines=(self._line,)).encode())

    def _conflict(self, body: bytes) -> Effect:
        try:
            size = submission.decode_size(body)
        except Invalid as fault:
            return SubmissionFailed(f"it says that it cosigned another size, and not which: {fault.message}", SOON)
        self._conflicts += 1
        if size == self._old or self._conflicts > MAX_CONFLICTS:
            return SubmissionFailed("it does not say the same twice of what it cosigned last", SOON)
        if size > self._tree.size:
            return SubmissionFailed(f"it cosigned {plural(size, 'block')} already, and here are {self._tree.size}")
        self._old = size
        return self._post()

    def _read_cosigned(self, body: bytes) -> Effect:
        key = self._witness.key
        try:
            # The answer may have lines of other keys, which are not read (test_what_is_no_cosignature_is_not_believed).
            mine = [line for line in submission.decode_answer(body) if submission.is_by(line, key)]
            if not mine:
                return SubmissionFailed(f"it answers without a line of {key.name}")
            made = cosignature.verify(self._tree, mine[0], key)
        except Invalid as fault:
            return SubmissionFailed(f"its answer is no cosignature: {fault.message}")
        return (
            SubmissionAccepted(made) if made.at <= self._latest else SubmissionFailed("its clock is ahead of this one")
        )
