"""Ways to break the engine that the suite must notice: each replaces one named function by one that errs.

Those that docs/spec/engine-semantics.md#mutants lists come first, under its words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

import engines.spark.execution.inputs as inputs
import engines.spark.execution.inputs as versions
import engines.spark.execution.running_aggregates as running
import engines.spark.execution.tables as tables
import engines.spark.execution.transform as transform
import engines.spark.output.slice as output
import engines.spark.planning.slice_facts as input_windows
import engines.spark.planning.slice_facts as sessions
import engines.spark.planning.table_transaction as ticking
import engines.spark.planning.transaction as incremental
import engines.spark.rows.changelog as changes

Mutate: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def _facts(patch: pytest.MonkeyPatch, change: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    """Plan with other facts than there are."""
    plan = transform.plan_step
    patch.setattr(transform, "plan_step", lambda query, given, *rest: plan(query, change(given), *rest))


def _each_block(given: Any, change: Callable[[Any], Any]) -> Any:
    return dataclasses.replace(given, blocks=tuple(change(block) for block in given.blocks))


def late_by_transaction(patch: pytest.MonkeyPatch) -> None:
    def change(given: Sequence[Any]) -> Sequence[Any]:
        changed = []
        for each in given:
            first = next((block.before for block in each.blocks if not block.reopened), None)
            changed.append(_each_block(each, lambda b, m=first: b if b.reopened else dataclasses.replace(b, before=m)))
        return changed

    _facts(patch, change)


def late_by_slowest_input(patch: pytest.MonkeyPatch) -> None:
    def change(given: Sequence[Any]) -> Sequence[Any]:
        firsts = [next((block.before for block in each.blocks if not block.reopened), None) for each in given]
        least = None if None in firsts else min(firsts)

        def judged(block: Any) -> Any:
            known = block.before is not None and least is not None
            return dataclasses.replace(block, before=min(block.before, least) if known else None)

        return [_each_block(each, lambda block: block if block.reopened else judged(block)) for each in given]

    _facts(patch, change)


def bound_without_shift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        incremental, "_settled_bound", lambda paths, marks: incremental._slowest(marks[p.input] for p in paths)
    )


def bound_of_one_input(patch: pytest.MonkeyPatch) -> None:
    bound = incremental._settled_bound
    patch.setattr(
        incremental, "_settled_bound", lambda paths, marks: bound([p for p in paths if p.input == "a"], marks)
    )


def open_rows_dropped(patch: pytest.MonkeyPatch) -> None:
    kept = incremental._open_input
    patch.setattr(incremental, "_open_input", lambda given, known, marks, still: kept(given, known, marks, ()))


def no_output_filter(patch: pytest.MonkeyPatch) -> None:
    kept, end = transform.final_rows, incremental.LATEST
    patch.setattr(transform, "final_rows", lambda result, schema, vocab, *_: kept(result, schema, vocab, None, end))


def no_clamp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(versions, "effective_times", lambda ops, times, before, after, keys, known: times)
    new = tables._new
    patch.setattr(tables, "_new", lambda path, before, *rest: new(path, None, *rest))


def retraction_at_old_time(patch: pytest.MonkeyPatch) -> None:
    kept, new = versions.effective_times, tables._new
    patch.setattr(versions, "effective_times", lambda ops, t, before, after, *rest: kept(ops, t, before, before, *rest))
    patch.setattr(tables, "_new", lambda path, before, after, *rest: new(path, before, before, *rest))


def versions_by_time(patch: pytest.MonkeyPatch) -> None:
    until = versions.valid_until
    patch.setattr(versions, "valid_until", lambda keys, ranks, taus, limits: until(keys, taus, taus, limits))


def no_cancellation(patch: pytest.MonkeyPatch) -> None:
    def asserted(rows: pa.Table, vocab: Any) -> pa.Table:
        return rows.filter(pa.array(changes.positive(np.asarray(rows.column(vocab.operation_type)))))

    patch.setattr(inputs, "net", asserted)
    patch.setattr(tables, "cancelled_by", lambda codes, ops: (np.full(len(ops), -1), None))


def one_tick_per_transaction(patch: pytest.MonkeyPatch) -> None:
    planned = ticking.plan_table

    def last_tick(*given: Any) -> Any:
        step, table, waiting = planned(*given)
        return step, dataclasses.replace(table, ticks=table.ticks[-1:]), waiting

    patch.setattr(transform, "plan_table", last_tick)


def key_before_tick(patch: pytest.MonkeyPatch) -> None:
    kept = tables.differences

    def by_key(rows: pa.Table, of: np.ndarray, rounds: Any, keys: Sequence[str], single: bool) -> Any:
        changed, ops = kept(rows, of, rounds, keys, single)
        order = sorted(range(changed.num_rows), key=lambda at: [str(changed.column(key)[at]) for key in keys])
        return changed.take(pa.array(order, pa.int64())), ops[np.asarray(order, np.int64)]

    patch.setattr(tables, "differences", by_key)


def no_union_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(incremental, "_slowest", lambda marks: max((m for m in marks if m is not None), default=None))


def accumulators_not_merged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tables, "_merge_parts", lambda *given: given[-1])


def pairs_not_mended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(output, "_mend", lambda rows, offsets, sources, ops: np.ones(len(ops), bool))


def old_versions_forgotten(patch: pytest.MonkeyPatch) -> None:
    kept, never = incremental._version_step, incremental.LATEST - 1
    patch.setattr(incremental, "_version_step", lambda *given: dataclasses.replace(kept(*given), kept_from=never))


def output_unsorted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(output, "total_order", lambda table, columns: pa.array(range(table.num_rows - 1, -1, -1), pa.int64()))


def nothing_is_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(incremental, "_threshold", lambda paths, before, lateness: incremental.EARLIEST)


def late_on_the_first_path_only(patch: pytest.MonkeyPatch) -> None:
    kept = incremental._threshold
    patch.setattr(incremental, "_threshold", lambda paths, *rest: kept(paths[:1], *rest))


def lateness_not_allowed(patch: pytest.MonkeyPatch) -> None:
    kept = incremental._threshold
    patch.setattr(incremental, "_threshold", lambda paths, before, lateness: kept(paths, before, 0))


def settled_rows_emitted_again(patch: pytest.MonkeyPatch) -> None:
    plan = transform.plan_step

    def mutant(*given: Any) -> Any:
        step = plan(*given)
        reads = {alias: tuple(dataclasses.replace(read, low=incremental.EARLIEST) for read in each)
                 for alias, each in step.reads.items()}  # fmt: skip
        return dataclasses.replace(step, reads=reads, emit_from=None)

    patch.setattr(transform, "plan_step", mutant)


def one_path_only(patch: pytest.MonkeyPatch) -> None:
    plan = transform.plan_step
    patch.setattr(
        transform,
        "plan_step",
        lambda query, *rest: plan(dataclasses.replace(query, paths=query.paths[:1]), *rest),
    )


def sessions_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions.Sessions, "oldest", lambda self, path, judged, end: end)


def sessions_without_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "group_codes", lambda keys: np.arange(keys.num_rows))


def merged_as_read(patch: pytest.MonkeyPatch) -> None:
    """Rows of several logs in the order of the inputs, whatever had been promised."""
    patch.setattr(output, "_in_order", lambda rows: True)


def waiting_ticks_forgotten(patch: pytest.MonkeyPatch) -> None:
    planned = ticking.plan_table
    patch.setattr(transform, "plan_table", lambda *given: (*planned(*given)[:2], ()))


def waiting_rows_forgotten(patch: pytest.MonkeyPatch) -> None:
    for name in ("accumulate", "reevaluate"):
        kept = getattr(tables, name)

        def forgetful(*given: Any, kept: Callable[..., Any] = kept) -> Any:
            done = kept(*given)
            state = {key: rows for key, rows in done.state.items() if key == tables.WRITTEN}
            return dataclasses.replace(done, state=state)

        patch.setattr(transform, name, forgetful)


def corrections_unpaired(patch: pytest.MonkeyPatch) -> None:
    kept = tables.differences
    patch.setattr(tables, "differences", lambda rows, of, rounds, keys, single: kept(rows, of, rounds, keys, False))


def late_rows_counted_twice(patch: pytest.MonkeyPatch) -> None:
    kept = incremental._late_checks
    patch.setattr(
        incremental, "_late_checks", lambda alias, judged: [check for _ in range(2) for check in kept(alias, judged)]
    )


def held_back_forgotten(patch: pytest.MonkeyPatch) -> None:
    """As if what an emission limit holds back had left."""
    planned = transform.plan_step

    def change(query: Any, given: Any, previous: Any, oldest: Any, limit: Any) -> Any:
        step, whole = (planned(query, given, previous, oldest, each) for each in (limit, None))
        return dataclasses.replace(step, watermark=whole.watermark, inputs=whole.inputs)

    patch.setattr(transform, "plan_step", change)


def limit_of_tables_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Ticks after a limit are looked at, and promised not to be."""
    planned = transform.plan_table

    def change(inputs: Any, previous: Any, grid: Any, limit: Any) -> Any:
        step, _, waiting = planned(inputs, previous, grid, limit)
        return step, planned(inputs, previous, grid, None)[1], waiting

    patch.setattr(transform, "plan_table", change)


def windows_corrected_before_they_close(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(input_windows.InputWindows, "last_instants", lambda self, times: times)


def earlier_rows_forgotten(patch: pytest.MonkeyPatch) -> None:
    kept = transform.run_over_history
    patch.setattr(
        transform,
        "run_over_history",
        lambda session, query, windows, _, *rest: kept(session, query, windows, {}, *rest),
    )


def earlier_rows_of_idle_steps_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transform, "keep_unchanged", lambda former: {})


def one_row_kept(patch: pytest.MonkeyPatch) -> None:
    """Of ``rows n preceding``, whatever n is."""
    last = running._last

    def mutant(seen: Any, keys: Any, parts: Any, schema: Any) -> Any:
        short = [dataclasses.replace(each, preceding=min(each.preceding or 1, 1)) if each.preceding else each
                 for each in parts]  # fmt: skip
        return last(seen, keys, short, schema)

    patch.setattr(running, "_last", mutant)


NAMED: Final[Mapping[str, tuple[Mutate, str]]] = {
    "lateness per transaction": (
        late_by_transaction, "bucket-day overlapping sessions left-interval-join self-join latest-as-of",
    ),
    "lateness by the minimum of inputs": (
        late_by_slowest_input, "union-day left-interval-join full-outer-windows not-seen-before",
    ),
    "bound without the shift": (
        bound_without_shift, "window-day bucket-month left-interval-join running-sum self-join next-month",
    ),
    "bound from one input": (
        bound_of_one_input, "left-interval-join union-day versions full-outer-windows latest-as-of",
    ),
    "open rows dropped": (
        open_rows_dropped, "bucket-month running-sum sessions top-two rank-of-months distinct-days union-log",
    ),
    "no output filter": (no_output_filter, "two-paths overlapping running-sum self-join"),
    "no tau clamp": (no_clamp, "versions versions-that-only-grow group-grows group-changes"),
    "retraction at its old time": (
        retraction_at_old_time, "versions versions-as-of two-dimensions group-changes top-of-a-key",
    ),
    "versions ranked by time": (versions_by_time, "versions versions-as-of two-dimensions"),
    "no cancellation": (
        no_cancellation, "days-of-changes days-of-careless-changes group-changes one-of-two-changes",
    ),
    "one tick per transaction": (one_tick_per_transaction, "group-grows group-of-two group-changes top-of-a-key"),
    "key before tick": (key_before_tick, "group-grows group-of-two group-changes group-by-expression"),
    "no union gate": (no_union_gate, "union-log union-of-changes group-of-two"),
    "no accumulator merge": (accumulators_not_merged, "group-grows group-extremes group-of-two"),
    "pairs not mended": (pairs_not_mended, "map-of-changes union-of-changes"),
    "old versions forgotten": (
        old_versions_forgotten, "versions versions-that-only-grow two-dimensions latest-as-of",
    ),
    "unsorted output": (output_unsorted, "bucket-day self-join versions union-log equal-days"),
}  # fmt: skip
"""By the words of the specification: what breaks, and the shapes that must notice it, each by itself."""
OWN: Final[Mapping[str, tuple[Mutate, str]]] = {
    "nothing is late": (nothing_is_late, "bucket-day two-paths sessions"),
    "late on the first path only": (late_on_the_first_path_only, "months-and-days"),
    "lateness not allowed": (lateness_not_allowed, "patient-days"),
    "settled rows emitted again": (settled_rows_emitted_again, "bucket-month left-interval-join"),
    "one path only": (one_path_only, "self-join sum-of-a-join"),
    "sessions cut": (sessions_cut, "sessions month-of-sessions"),
    "sessions without keys": (sessions_without_keys, "sessions days-of-sessions"),
    "merged as read": (merged_as_read, "union-log union-of-changes"),
    "waiting ticks forgotten": (waiting_ticks_forgotten, "group-of-two one-of-two-changes"),
    "waiting rows forgotten": (waiting_rows_forgotten, "group-grows group-changes"),
    "corrections unpaired": (corrections_unpaired, "group-grows group-changes"),
    "windows corrected before they close": (
        windows_corrected_before_they_close,
        "corrected-days corrected-days-of-changes",
    ),
    "held back and forgotten": (held_back_forgotten, "bucket-day left-interval-join versions sessions"),
    "limit of tables forgotten": (limit_of_tables_forgotten, "group-changes"),
    "earlier rows forgotten": (earlier_rows_forgotten, "holdings last-rows-and-all-rows total-of-a-join"),
    "earlier rows forgotten when nothing is settled": (earlier_rows_of_idle_steps_forgotten, "holdings"),
    "one row kept": (one_row_kept, "last-rows-and-all-rows"),
    "late rows counted twice": (late_rows_counted_twice, "bucket-day latest-as-of"),
}
PAIRS: Final = [(kind, case) for table in (NAMED, OWN) for kind, (_, cases) in table.items() for case in cases.split()]


def mutate(kind: str, patch: pytest.MonkeyPatch) -> None:
    ({**NAMED, **OWN})[kind][0](patch)
