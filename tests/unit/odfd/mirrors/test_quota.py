"""Whatever steps mirrors take, and wherever they are cut off: what lies on the disk counts, and is within the quota."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from chain.errors import Environment
from chain.multihash import Multihash
from odfd.mirrors.quota import BlockQuota, MirrorQuota
from odfd.published.staging import IDLE_SECONDS, PER_FILE, StagingQuota
from odfd.store.holdings import PER_BLOCK, PER_OBJECT
from odfd.store.mirror_specs import MirrorSpec

LIMIT = 60_000
SIZES = st.integers(0, 9_000)


class Kept:
    """What mirrors hold, without a database: all that ``MirrorQuota`` asks of ``DataRetention``."""

    def __init__(self) -> None:
        self.objects: dict[Multihash, int] = {}
        self.lower: list[Multihash] = []
        """Objects of a mirror of a lower priority, the oldest first."""
        self.blocks: list[int] = []

    def taken(self) -> int:
        objects = sum(self.objects.values()) + PER_OBJECT * len(self.objects)
        return objects + sum(self.blocks) + PER_BLOCK * len(self.blocks)

    def give_way(self, spec: MirrorSpec, needed: int) -> bool:
        if spec.priority <= 0 or sum(self.objects[name] for name in self.lower) < needed:
            return False
        while needed > 0:
            needed -= self.objects.pop(self.lower.pop(0))
        return True


class Mirrors(RuleBasedStateMachine):
    """The steps of mirrors: promises, bytes that come in parts, counting, blocks, staging, cuts, restarts."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.partial, self.staged = folder / "partial", folder / "staged"
        self.partial.mkdir()
        self.staged.mkdir()
        self.kept: Any = Kept()
        self.now = 0.0
        self.number = 0
        self.start()

    def start(self) -> None:
        """A new process: promises and blocks that were not kept are gone, files and rows are not."""
        self.staging = StagingQuota(int, lambda size: self.quota.check_staged(size), lambda: self.now)
        self.staging.add(self.staged)
        self.quota = MirrorQuota(self.kept, self.partial, lambda: LIMIT, tuple, self.staging)
        self.coming: dict[Multihash, int] = {}
        self.walks: list[tuple[BlockQuota, list[int]]] = []

    def teardown(self) -> None:
        self._folder.cleanup()

    def _name(self) -> Multihash:
        self.number += 1
        return Multihash.sha3_256(self.number.to_bytes(4, "big"))

    def _spec(self, priority: int) -> MirrorSpec:
        return MirrorSpec(dataset="did:odf:x", name="x", priority=priority)

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=4), priority=st.integers(0, 1))
    def promise(self, sizes: list[int], priority: int) -> None:
        wanted = {self._name(): size for size in sizes}
        with suppress(Environment):
            self.quota.promise(self._spec(priority), wanted)
            self.coming |= wanted

    @rule(part=st.floats(0, 1))
    def some_comes(self, part: float) -> None:
        for name, size in self.coming.items():
            (self.partial / str(name)).write_bytes(bytes(int(size * part)))

    @rule(is_lower=st.booleans())
    def one_is_whole(self, is_lower: bool) -> None:
        if self.coming:
            name, size = self.coming.popitem()
            (self.partial / str(name)).unlink(missing_ok=True)
            self.kept.objects[name] = size
            if is_lower:
                self.kept.lower.append(name)
            self.quota.take_back([name])

    @rule()
    def one_is_cut_off(self) -> None:
        """Its part stays."""
        if self.coming:
            name, _ = self.coming.popitem()
            self.quota.take_back([name])

    @rule(priority=st.integers(0, 1))
    def a_walk_begins(self, priority: int) -> None:
        self.walks.append((BlockQuota(self.quota, self._spec(priority)), []))

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=3))
    def blocks_come(self, sizes: list[int]) -> None:
        if self.walks:
            room, blocks = self.walks[-1]
            with suppress(Environment):
                room.take(sum(sizes) + PER_BLOCK * len(sizes))
                blocks += sizes

    @rule()
    def they_are_kept(self) -> None:
        if self.walks:
            room, blocks = self.walks[-1]
            self.kept.blocks += blocks
            room.give_back(sum(blocks) + PER_BLOCK * len(blocks))
            blocks.clear()

    @rule()
    def a_walk_ends(self) -> None:
        if self.walks:
            room, _ = self.walks.pop()
            room.close()

    @rule(folder=st.sampled_from("ab"), size=SIZES)
    def a_block_is_staged(self, folder: str, size: int) -> None:
        with suppress(Environment):
            self.staging.take(self.staged / folder, size)
            blocks = self.staged / folder / "blocks"
            blocks.mkdir(parents=True, exist_ok=True)
            (blocks / str(self._name())).write_bytes(bytes(size))

    @rule(folder=st.sampled_from("ab"))
    def what_was_staged_is_taken_over(self, folder: str) -> None:
        self.staging.remove(self.staged / folder)

    @rule(seconds=st.sampled_from([1.0, IDLE_SECONDS]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_process_is_killed(self) -> None:
        self.start()

    @invariant()
    def all_that_lies_here_is_within_the_quota(self) -> None:
        partial = sum(file.stat().st_size for file in self.partial.iterdir())
        staged = [file.stat().st_size for file in self.staged.rglob("*") if file.is_file()]
        waiting = sum(sum(blocks) for _, blocks in self.walks)
        assert self.kept.taken() + partial + sum(staged) + waiting <= LIMIT

    @invariant()
    def what_is_staged_is_counted(self) -> None:
        staged = [file.stat().st_size for file in self.staged.rglob("*") if file.is_file()]
        assert self.staging.total() >= sum(staged) + PER_FILE * len(staged)

    @invariant()
    def room_that_nobody_uses_is_free(self) -> None:
        """Nothing leaks: with no work under way only what lies here counts."""
        if not self.coming and not self.walks:
            assert self.quota.to_come({}) == 0
            assert self.quota._blocks == 0


Mirrors.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestMirrors = pytest.mark.slow(Mirrors.TestCase)


def test_what_is_staged_is_within_the_quota_and_no_mirror_gives_way_for_it(tmp_path: Path) -> None:
    """Strangers' files are staged before anybody knows what they are: leftovers may go for them, data may not."""
    kept: Any = Kept()
    kept.blocks = [LIMIT - 2_000 - PER_BLOCK]
    kept.give_way = lambda *_: pytest.fail("a mirror gave way")
    quota = MirrorQuota(kept, tmp_path, lambda: LIMIT, tuple, StagingQuota(int, lambda _: None))
    quota.check_staged(2_000)
    with pytest.raises(Environment) as caught:
        quota.check_staged(2_001)
    assert caught.value.rule == "mirror-quota"
    (tmp_path / "leftover").write_bytes(bytes(500))
    quota.check_staged(2_000)
    assert not (tmp_path / "leftover").exists()


def test_what_is_promised_is_within_the_quota_with_all_that_was_promised_before(tmp_path: Path) -> None:
    quota = MirrorQuota(cast(Any, Kept()), tmp_path, lambda: LIMIT, tuple, StagingQuota(int, lambda _: None))
    spec = MirrorSpec(dataset="did:odf:x", name="x")
    half, rest = Multihash.sha3_256(b"half"), Multihash.sha3_256(b"rest")
    quota.promise(spec, {half: LIMIT // 2 - PER_OBJECT})
    with pytest.raises(Environment) as caught:
        quota.promise(spec, {rest: LIMIT // 2 - PER_OBJECT + 1})
    assert caught.value.rule == "mirror-quota"
    quota.promise(spec, {half: LIMIT // 2 - PER_OBJECT, rest: LIMIT // 2 - PER_OBJECT})
    with pytest.raises(Environment):
        quota.promise_blocks(spec, 1)
    quota.take_back([rest])
    quota.promise_blocks(spec, LIMIT // 2)
    with pytest.raises(Environment):
        quota.promise(spec, {rest: 0})
