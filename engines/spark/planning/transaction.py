"""Plans one transaction: which rows are late, settled, needed by the query, and kept.

Pure: takes facts about blocks and returns a plan; reads nothing and runs no query. All of it follows from the influence
intervals of the query's paths, whatever its windows are. Spec: docs/spec/engine-semantics.md#law, #final-mode,
#influence, #changelogs, #state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid
from engines.spark.analysis.classify import Classification, Mode, Path
from engines.spark.analysis.influence import SessionWindow, VersionedInput
from engines.spark.analysis.monotone import EARLIEST, LATEST, MILLISECOND, apply, least
from engines.spark.planning.lateness import LateInput, reached_back
from engines.spark.state.checkpoint import VERSION, OpenInput, StateCheckpoint, runs_of

_DISAGREE: Final = "replay the transform from its start"


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """The facts of one data block of an input for planning. Times are microseconds."""

    name: str
    """Hash as text; empty if the coordinator did not give it."""
    path: str | None
    before: int | None
    """Watermark before the block; ``None``: there was none."""
    after: int | None
    rows: int = 0
    untimed: int = 0
    """Number of rows without event time."""
    first: int | None = None
    """Least event time of its rows, ``None`` if no row has one."""
    last: int | None = None
    reopened: bool = False
    changes: bool | None = None
    """Whether any row is not an addition; ``None``: unknown."""


@dataclass(frozen=True, slots=True)
class InputFacts:
    """One input of the transaction: reopened blocks first, then new ones, in chain order."""

    dataset: str
    alias: str
    blocks: tuple[BlockFacts, ...]
    lateness: int = 0
    """Allowed lateness, microseconds: it is subtracted from the watermark."""
    only_late: bool = False
    """In log mode: only late rows are wanted."""
    reach: int | None = 0
    """In final mode: how long after its output was settled a row may come and still count, microseconds; ``None``: any
    time."""


@dataclass(frozen=True, slots=True)
class SliceRead:
    """Rows of some slices with ``low <= event_time < high`` (microseconds); the ends of time mean no bound."""

    paths: tuple[str, ...]
    low: int = EARLIEST
    high: int = LATEST
    before: int = EARLIEST
    """Watermark before these slices' block, for merged rows; in final mode the least output time of their rows."""


Judged: TypeAlias = Sequence[tuple[BlockFacts, int]]
"""Blocks of an input, each with the time before which its rows are late."""
Oldest: TypeAlias = Callable[[SessionWindow, Mapping[str, Judged], int], int]
"""(sessions, blocks by alias, end) -> start of the oldest session that ends at ``end`` or later, in the times by which
the query forms sessions; ``LATEST`` if there is none. Sessions are over accepted rows of all their members."""


def no_sessions(sessions: SessionWindow, judged: Mapping[str, Judged], end: int) -> int:
    raise AssertionError(f"a session of {len(sessions.of)} paths among {len(judged)} inputs, ending at {end}")


@dataclass(frozen=True, slots=True)
class LateCheck:
    """A check to make: rows of a new slice before ``threshold`` are late, and only the slice can tell how many there
    are."""

    alias: str
    path: str
    threshold: int


@dataclass(frozen=True, slots=True)
class VersionStep:
    """How the versions of an input change, whose rows are in force until superseded. Times are microseconds."""

    blocks: tuple[tuple[BlockFacts, int], ...]
    """New blocks, each with the time before which its rows are late."""
    lateness: int
    life: VersionedInput
    seen_until: int
    """The query sees the versions that begin before this time ..."""
    seen_from: int
    """... and that end at this time or later."""
    kept_from: int
    """Versions that end from this time on are needed again."""


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """The plan of one transaction."""

    reads: Mapping[str, tuple[SliceRead, ...]]
    """Rows to read, by alias; if all are empty, no query has to run."""
    late_checks: tuple[LateCheck, ...]
    emit_from: int | None
    """Output rows before this time have been emitted already, microseconds; ``None``: none have."""
    emit_until: int | None
    """Output rows from this time on wait, microseconds; ``None`` in log mode, or when nothing is settled."""
    watermark: int | None
    """Watermark of the output, microseconds."""
    inputs: tuple[OpenInput, ...]
    untimed: Mapping[str, int]
    versions: Mapping[str, VersionStep] = field(default_factory=dict)
    """Changes by alias, for versioned inputs, which are not in ``reads``."""
    kept: Mapping[str, tuple[SliceRead, ...]] = field(default_factory=dict)
    """Rows needed again, by alias, for coordinators that cannot mount their blocks again."""
    settled: int | None = None
    """Time before which output could have been emitted; ``None``: no later than what was asked for."""

    @property
    def idle(self) -> bool:
        return not any(self.reads.values())

    @property
    def paths(self) -> set[str]:
        return {path for reads in self.reads.values() for read in reads for path in read.paths}


def plan_step(
    query: Classification,
    inputs: Sequence[InputFacts],
    previous: StateCheckpoint | None,
    oldest: Oldest = no_sessions,
    limit: int | None = None,
) -> TransactionStep:
    """Plans the next step after the checkpoint ``previous``; settles nothing at ``limit`` (microseconds) or later.

    Raises Invalid when blocks and checkpoint contradict each other.
    """
    known = {item.alias: item for item in previous.inputs} if previous is not None else {}
    for given in inputs:
        _check_continues(given, known.get(given.alias))
    watermarks = {given.alias: _watermark(given, known.get(given.alias)) for given in inputs}
    done = None if previous is None or previous.g is None else previous.g * MILLISECOND
    if query.mode is Mode.LOG:
        return _log_step(query, inputs, known, watermarks, done)
    untimed = {given.alias: sum(block.untimed for block in given.blocks if not block.reopened) for given in inputs}
    settled = _later(done, _settled_bound(query.paths, watermarks))
    bound = _later(done, limit) if settled is not None and limit is not None and limit < settled else settled
    moved = bound is not None and (done is None or bound > done)
    reads = {}
    checks: list[LateCheck] = []
    opened = []
    versions, kept = {}, {}
    until = bound if moved else None
    late = {given.alias: _late_input(query, given) for given in inputs if given.reach != 0}
    all_judged = {given.alias: _judge(query, given) for given in inputs if given.reach == 0}
    seen_after = None if done is None else min([done, *(each.earliest(done, until) for each in late.values())])
    kept_after = reached_back([(path, each.reach) for each in late.values() for path in each.paths], bound)
    for given in inputs:
        paths = [path for path in query.paths if path.input == given.alias]
        life = next((path.life for path in paths if isinstance(path.life, VersionedInput)), None)
        if life is not None:
            versions[given.alias] = _version_step(given, paths, life, bound, seen_after, kept_after)
            checks.extend(_late_checks(given.alias, () if life.clamped else versions[given.alias].blocks))
            opened.append(_open_input(given, known.get(given.alias), watermarks, ()))
            continue
        if given.alias in late:
            mine = late[given.alias]
            checks.extend(_late_checks(given.alias, mine.judged))
            reads[given.alias] = (
                () if until is None else tuple(SliceRead(*each) for each in mine.find_needed(done, until))
            )
            again = list(mine.still_open(bound))
        else:
            judged = all_judged[given.alias]
            since = partial(_since, paths, all_judged, oldest)
            checks.extend(_late_checks(given.alias, judged))
            reads[given.alias] = () if until is None else _needed_reads(paths, judged, since(done), until)
            needed = since(bound)
            again = [(block, max(needed, low), EARLIEST) for block, low in _still_open(judged, needed)]
        kept[given.alias] = tuple(
            SliceRead((block.path,), low, before=before) for block, low, before in again if block.path is not None
        )
        still = [(block, low) for block, low, _ in again]
        opened.append(_open_input(given, known.get(given.alias), watermarks, still))
    waits = settled if settled != bound else None
    return TransactionStep(reads, tuple(checks), done, until, bound, tuple(opened), untimed, versions, kept, waits)


@dataclass(frozen=True, slots=True)
class InputProgress:
    """How far the inputs have come, for modes that keep no blocks open."""

    done: int | None
    """Time before which output was emitted earlier, microseconds; ``None``: none was."""
    slowest: int | None
    """The least of the inputs' watermarks, microseconds; ``None`` if an input has none."""
    inputs: tuple[OpenInput, ...]
    untimed: Mapping[str, int]


def progress(inputs: Sequence[InputFacts], previous: StateCheckpoint | None) -> InputProgress:
    """Computes how far the inputs have come. Raises Invalid when blocks and checkpoint contradict each other."""
    known = {item.alias: item for item in previous.inputs} if previous is not None else {}
    for given in inputs:
        _check_continues(given, known.get(given.alias))
    marks = {given.alias: _watermark(given, known.get(given.alias)) for given in inputs}
    return InputProgress(
        done=None if previous is None or previous.g is None else previous.g * MILLISECOND,
        slowest=_slowest(marks.values()),
        inputs=tuple(_open_input(given, known.get(given.alias), marks, ()) for given in inputs),
        untimed={given.alias: sum(block.untimed for block in given.blocks if not block.reopened) for given in inputs},
    )


def _version_step(
    given: InputFacts,
    paths: Sequence[Path],
    life: VersionedInput,
    bound: int | None,
    seen_after: int | None,
    kept_after: int | None,
) -> VersionStep:
    """Plans the versions of an input.

    ``seen_after`` and ``kept_after``: the least output time of rows that are joined now, and of rows to come.
    """
    fresh = [block for block in given.blocks if not block.reopened]
    judged = [(block, EARLIEST if life.clamped else _threshold(paths, block.before, given.lateness)) for block in fresh]
    from_done, from_bound = (
        EARLIEST if time is None else min(least(path.high, time) for path in paths) for time in (seen_after, kept_after)
    )
    until = EARLIEST if bound is None else max(least(path.low, bound) for path in paths)
    return VersionStep(tuple(judged), given.lateness, life, until, from_done, from_bound)


def _log_step(
    query: Classification,
    inputs: Sequence[InputFacts],
    known: Mapping[str, OpenInput],
    watermarks: Mapping[str, int | None],
    done: int | None,
) -> TransactionStep:
    """Plans a step in log mode, where each row is passed on by itself. Rows of a single input are read at once; of
    several inputs, once each input's watermark has passed that before the row's block.

    Rows are then in the order of the watermarks before their blocks, which is the same however chains interleave.
    """
    promised = not any(given.only_late for given in inputs)
    if len(inputs) == 1:
        reads = {given.alias: _new_slices(query, given) for given in inputs}
        kept = tuple(_open_input(given, known.get(given.alias), watermarks, ()) for given in inputs)
        bound = _settled_bound(query.paths, watermarks) if promised else None
        return TransactionStep(reads, (), None, None, _later(done, bound), kept, {})
    old = {given.alias: known[given.alias].w if given.alias in known else None for given in inputs}
    reached = _slowest(None if mark is None else mark * MILLISECOND for mark in old.values())
    gate = _slowest(watermarks.values())
    reads, opened = {}, []
    again: dict[str, tuple[SliceRead, ...]] = {}
    for given in inputs:
        placed = [
            (block, EARLIEST if block.before is None else block.before - given.lateness)
            for block in given.blocks
            if _is_needed(query, given, block)
        ]
        reads[given.alias] = tuple(
            SliceRead((block.path,), high=_needed_before(query, given, block), before=place)
            for block, place in placed
            if block.path is not None
            and gate is not None
            and place < gate
            and not (reached is not None and place < reached)
        )
        waiting = [(block, place) for block, place in placed if gate is None or place >= gate]
        again[given.alias] = tuple(
            SliceRead((block.path,), before=EARLIEST if block.before is None else block.before)
            for block, _ in waiting
            if block.path is not None
        )
        opened.append(_open_input(given, known.get(given.alias), watermarks, waiting))
    bound = None if gate is None or not promised else min((apply(path.low, gate) for path in query.paths), default=None)
    return TransactionStep(reads, (), None, None, _later(done, bound), tuple(opened), {}, kept=again)


def _slowest(watermarks: Iterable[int | None]) -> int | None:
    """Returns the least watermark; ``None`` if any is not known yet."""
    marks = list(watermarks)
    return None if None in marks else min((mark for mark in marks if mark is not None), default=None)


def next_checkpoint(
    query: Classification,
    transform: str,
    step: TransactionStep,
    late: Mapping[str, int],
    previous: StateCheckpoint | None,
    ticks: Sequence[int] = (),
) -> StateCheckpoint:
    """Returns the state after ``step``, which dropped ``late`` rows; ``ticks`` (microseconds) are not reached yet."""
    old_late = previous.late if previous is not None else {}
    old_untimed = previous.untimed if previous is not None else {}
    return StateCheckpoint(
        v=VERSION,
        transform=transform,
        mode=query.mode.value,
        g=None if step.watermark is None else step.watermark // MILLISECOND,
        inputs=step.inputs,
        late=_sum(old_late, late),
        untimed=_sum(old_untimed, step.untimed),
        ticks=tuple(tick // MILLISECOND for tick in ticks) if ticks else msgspec.UNSET,
        settled=msgspec.UNSET if step.settled is None else step.settled // MILLISECOND,
    )


def _sum(old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int]:
    total = {alias: old.get(alias, 0) + new.get(alias, 0) for alias in (*old, *new)}
    return {alias: count for alias, count in total.items() if count}


def _check_continues(given: InputFacts, known: OpenInput | None) -> None:
    """Raises Invalid if a block that the checkpoint needs is missing, or a new one begins before its watermark."""
    reopened = {block.name for block in given.blocks if block.reopened}
    missing = [name for run in (known.open if known is not None else ()) for name in run if name not in reopened]
    if missing:
        raise Invalid(
            f"input {given.alias}: the checkpoint needs block {missing[0]} again, and it was not given",
            rule="open-blocks",
            hint="mount the blocks that open_blocks lists, before the new ones",
        )
    fresh = [block for block in given.blocks if not block.reopened]
    if known is None or known.w is None or not fresh:
        return
    before = fresh[0].before
    if before is None or before < known.w * MILLISECOND:
        raise Invalid(
            f"input {given.alias}: block {fresh[0].name or '?'} begins before the watermark of the checkpoint",
            rule="checkpoint-order",
            hint=_DISAGREE,
        )


def _watermark(given: InputFacts, known: OpenInput | None) -> int | None:
    latest = None if known is None or known.w is None else known.w * MILLISECOND + given.lateness
    for block in given.blocks:
        latest = _later(latest, block.after)
    return None if latest is None else latest - given.lateness


def _later(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _settled_bound(paths: Sequence[Path], watermarks: Mapping[str, int | None]) -> int | None:
    """Returns the time before which output is settled: the least that any path's watermark reaches, if all do."""
    reached = []
    for path in paths:
        watermark = watermarks[path.input]
        if watermark is None:
            return None
        reached.append(apply(path.low, watermark))
    return min(reached, default=None)


def _new_slices(query: Classification, given: InputFacts) -> tuple[SliceRead, ...]:
    groups: dict[int, list[str]] = {}
    for block in given.blocks:
        if block.path is not None and not block.reopened and _is_needed(query, given, block):
            groups.setdefault(_needed_before(query, given, block), []).append(block.path)
    return tuple(SliceRead(tuple(paths), high=high) for high, paths in groups.items())


def _is_needed(query: Classification, given: InputFacts, block: BlockFacts) -> bool:
    """Whether a block has rows that a query in log mode reads."""
    if block.path is None or not block.rows:
        return False
    return not given.only_late or (block.first is not None and block.first < _needed_before(query, given, block))


def _needed_before(query: Classification, given: InputFacts, block: BlockFacts) -> int:
    """Returns the time before which a query in log mode sees rows of a block: no bound, or only its late rows."""
    if not given.only_late:
        return LATEST
    return _threshold([path for path in query.paths if path.input == given.alias], block.before, given.lateness)


def _late_input(query: Classification, given: InputFacts) -> LateInput[BlockFacts]:
    """Makes the planning view of an input whose late rows count."""
    paths = [path for path in query.paths if path.input == given.alias]
    back = None if given.reach is None else given.lateness + given.reach
    judged = [(block, EARLIEST if back is None else _threshold(paths, block.before, back)) for block in given.blocks]
    return LateInput(paths, given.lateness, given.reach, judged)


def _judge(query: Classification, given: InputFacts) -> Judged:
    paths = [path for path in query.paths if path.input == given.alias]
    return [(block, _threshold(paths, block.before, given.lateness)) for block in given.blocks]


def _threshold(paths: Sequence[Path], before: int | None, lateness: int) -> int:
    """Returns the time before which rows of a block are late: they could change output that was settled when it was
    written."""
    if before is None:
        return EARLIEST
    occurrences = [-1 - at if path.occurrence is None else path.occurrence for at, path in enumerate(paths)]
    settled: dict[int, int] = {}
    for path, of in zip(paths, occurrences, strict=True):
        time = apply(path.low, before - lateness)
        settled[of] = min(time, settled.get(of, time))
    return max((least(path.low, settled[of]) for path, of in zip(paths, occurrences, strict=True)), default=EARLIEST)


def _late_checks(alias: str, judged: Judged) -> list[LateCheck]:
    return [
        LateCheck(alias, block.path, threshold)
        for block, threshold in judged
        if block.path is not None and not block.reopened and block.first is not None and block.first < threshold
    ]


def _since(paths: Sequence[Path], judged: Mapping[str, Judged], oldest: Oldest, time: int | None) -> int:
    """Returns the earliest event time of rows whose influence reaches ``time`` or later."""
    if time is None:
        return EARLIEST
    return min((_reaching(path, judged, oldest, time) for path in paths), default=LATEST)


def _reaching(path: Path, judged: Mapping[str, Judged], oldest: Oldest, time: int) -> int:
    reach = least(path.high, time)
    if not isinstance(path.life, SessionWindow):
        return reach
    begins = oldest(path.life, judged, reach + path.life.shift)
    return begins if begins == LATEST else begins - path.life.shift


def _needed_reads(paths: Sequence[Path], judged: Judged, low: int, bound: int) -> tuple[SliceRead, ...]:
    """Returns the accepted rows from ``low`` on whose influence begins before ``bound``; slices with equal bounds
    together."""
    # Below LATEST, so that there is a bound, which rows without a time are never within.
    high = min(max((least(path.low, bound) for path in paths), default=EARLIEST), LATEST - 1)
    groups: dict[int, list[str]] = {}
    for block, threshold in judged:
        if block.path is None or block.first is None or block.last is None:
            continue
        start = max(low, threshold)
        if block.first >= high or block.last < start:
            continue
        # A bound before all rows of a block has no effect, and fewer different bounds mean fewer scans.
        groups.setdefault(start if block.first < start else low, []).append(block.path)
    return tuple(SliceRead(tuple(names), start, high) for start, names in sorted(groups.items()))


def _still_open(judged: Judged, since: int) -> tuple[tuple[BlockFacts, int], ...]:
    """Returns the blocks that may hold accepted rows from ``since`` on."""
    return tuple(
        (block, threshold)
        for block, threshold in judged
        if block.path is not None and block.last is not None and block.last >= max(since, threshold)
    )


def _open_input(
    given: InputFacts,
    known: OpenInput | None,
    watermarks: Mapping[str, int | None],
    still: Sequence[tuple[BlockFacts, int]],
) -> OpenInput:
    fresh = [block.name for block in given.blocks if not block.reopened and block.name]
    watermark = watermarks[given.alias]
    return OpenInput(
        id=given.dataset,
        alias=given.alias,
        block=fresh[-1] if fresh else known.block if known is not None else None,
        w=None if watermark is None else watermark // MILLISECOND,
        open=runs_of([block.name for block, _ in still]),
    )
