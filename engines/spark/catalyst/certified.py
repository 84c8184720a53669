"""Makes SQL that computes sums, means and variances of doubles as a few lossless sums, with a bound of the remainder.

A double is cut at fixed powers of two by adding and subtracting a constant, which rounds it there; sums of the pieces
are exact in any order, since each has fewer than 54 bits in units of its place. The part below the last place is not
added: the sum of its absolute values bounds the error. The value is computed for both ends of that bound, and is
certain if both round to the same double. Otherwise the plan fails with ``TOO_COARSE``, and a slower one runs. ADR 20.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engines.spark.analysis.exact import BOUNDED, SPREADS, AggregateCall, Grid
from engines.spark.catalyst.bignum import BigIntegers

_ROWS: Final = 1 << 19
"""Most rows of a group. Pieces have up to 34 bits, so that the sum of this many has 53."""
_GREATEST: Final = 2.0**33
_BOUND: Final = -108
"""Power of two that is the unit of the error bound."""
_WEIGHT: Final = 256
"""Weight, in the error bound, of the remainders of numbers against those of products: a sum of numbers is off by at
most the bound over this, and counts twice its own size in the variance."""


def prepare_columns(call: AggregateCall, value: str, failure: str) -> tuple[list[str], ...]:
    """Returns SQL for columns to be added stage by stage. ``value``: the column of numbers, null where a row does not
    count.

    A number that is too great, infinite or NaN makes the plan fail at once, so only the rows read until then are lost.
    """
    z, rest = call.name("z"), call.name("ra")
    known = f"{value} is null or abs({value}) < {_GREATEST!r}D"
    first = [f"case when abs({value}) < {_GREATEST!r}D then {value} else 0D end as {z}"]
    numbers = [[_rest(BOUNDED.numbers, at, call, z, "ra")] for at in range(BOUNDED.numbers.limbs)]
    left = f"abs({rest}{BOUNDED.numbers.limbs - 1}_)"
    products: list[list[str]] = []
    if call.kind in SPREADS:
        products = _products(call, z)
        last = BOUNDED.products.limbs - 1
        left = f"{_WEIGHT}D * {left} + abs({call.name('rp')}{last}_) + abs({call.name('re')}{last}_)"
    stages = [[*one, *other] for one, other in _side_by_side(numbers, products)]
    bound = f"case when {known} then {left} else cast(raise_error('{failure}') as double) end as {call.name('u')}"
    return first, *stages, [bound]


def _side_by_side(one: list[list[str]], other: list[list[str]]) -> list[tuple[list[str], list[str]]]:
    length = max(len(one), len(other))
    return list(zip(*(each + [[]] * (length - len(each)) for each in (one, other)), strict=True))


def _rest(grid: Grid, at: int, call: AggregateCall, whole: str, name: str, skipped: int = 0) -> str:
    """Returns SQL for the rest of a number after its piece at a place is removed, the highest place first."""
    before = whole if at == skipped else f"{call.name(name)}{at - 1}_"
    low = grid.low + grid.width * (grid.limbs - 1 - at)
    rounding = f"{1.5 * 2.0 ** (52 + low)!r}D"
    return f"{before} - (({before} + {rounding}) - {rounding}) as {call.name(name)}{at}_"


def _products(call: AggregateCall, z: str) -> list[list[str]]:
    """Returns SQL for a square as double precision rounds it, its rounding error, exactly (Dekker), and
    the rests of both."""
    grid, p, h, e = BOUNDED.products, call.name("p"), call.name("h"), call.name("e")
    rests = [[_rest(grid, at, call, p, "rp")] for at in range(grid.limbs)]
    for at in range(1, grid.limbs):
        rests[at].append(_rest(grid, at, call, e, "re", 1))
    rests[0].append(f"(({h} * {h} - {p}) + 2D * {h} * ({z} - {h})) + ({z} - {h}) * ({z} - {h}) as {e}")
    return [[f"{z} * {z} as {p}", f"134217729D * {z} - (134217729D * {z} - {z}) as {h}"], *rests]


def sums(call: AggregateCall, value: str) -> list[str]:
    made = [f"count({value}) as {call.name('n')}", f"sum({call.name('u')}) as {call.name('bound')}"]
    for at in range(BOUNDED.numbers.limbs):
        made.append(f"sum({_piece(call, call.name('z'), 'ra', at)}) as {call.name('a')}{at}_")
    if call.kind in SPREADS:
        for at in range(BOUNDED.products.limbs):
            piece = _piece(call, call.name("p"), "rp", at)
            if at:
                piece = f"({piece}) + ({_piece(call, call.name('e'), 're', at, 1)})"
            made.append(f"sum({piece}) as {call.name('q')}{at}_")
    return made


def _piece(call: AggregateCall, whole: str, name: str, at: int, skipped: int = 0) -> str:
    before = whole if at == skipped else f"{call.name(name)}{at - 1}_"
    return f"{before} - {call.name(name)}{at}_"


def count_units(call: AggregateCall) -> list[str]:
    """Returns SQL for the sums as BIGINT in units of their places, and for the error bound, null where
    it is unknown."""
    made = [_units(BOUNDED.numbers, call, "a", at) for at in range(BOUNDED.numbers.limbs)]
    if call.kind in SPREADS:
        made += [_units(BOUNDED.products, call, "q", at) for at in range(BOUNDED.products.limbs)]
    count, bound = call.name("n"), call.name("bound")
    # A sum of so many absolute values is off by less than one part in 2**33.
    whole = f"cast(ceil({bound} * {2.0**-_BOUND * (1 + 2.0**-20)!r}D) as bigint) + 1L"
    cases = f"when {bound} = 0D then 0L when {bound} < {2.0 ** (_BOUND + 60)!r}D then {whole}"
    return [*made, f"case when {count} > {_ROWS}L then null {cases} end as {call.name('off')}"]


def _units(grid: Grid, call: AggregateCall, name: str, at: int) -> str:
    low = grid.low + grid.width * (grid.limbs - 1 - at)
    scaled = f"{call.name(name)}{at}_ * {2.0**-low!r}D"
    whole = f"case when abs({scaled}) <= {2.0**53!r}D then cast({scaled} as bigint) else 0L end"
    return f"{whole} as {call.name('w' + name)}{at}_"


def totals(big: BigIntegers, call: AggregateCall, column: Mapping[str, Any]) -> dict[str, Any]:
    """Returns expressions for the totals, as whole numbers in BINARY."""
    terms = {"ta": ("wa", BOUNDED.numbers)} | ({"tq": ("wq", BOUNDED.products)} if call.kind in SPREADS else {})
    found = {}
    for name, (part, grid) in terms.items():
        pieces = [column[f"{call.name(part)}{at}_"] for at in reversed(range(grid.limbs))]
        found[name] = big.to_bytes(big.limbs(pieces, grid.width))
    return found


def ends(big: BigIntegers, call: AggregateCall, column: Mapping[str, Any]) -> dict[str, Any]:
    """Returns expressions for the lower and the upper bound of a value before it is divided; BINARY."""
    total, off = big.read(column[call.name("ta")]), big.of_long(column[call.name("off")])
    if call.kind not in SPREADS:
        total = big.shift(total, BOUNDED.numbers.low - _BOUND)
        return {"low": big.to_bytes(big.minus(total, off)), "high": big.to_bytes(big.add(total, off))}
    count = big.of_long(column[call.name("n")])
    square = big.shift(big.times(total, total), 2 * BOUNDED.numbers.low - BOUNDED.products.low)
    spread = big.minus(big.times(count, big.read(column[call.name("tq")])), square)
    # Error of n * sum(x*x) - sum(x)**2: (n + twice the sum over the weight) times the bound, plus two for rounding.
    size = big.shift(big.absolute(total), BOUNDED.numbers.low + 1 - _WEIGHT.bit_length() + 1)
    room = big.times(big.shift(off, _BOUND - BOUNDED.products.low), big.add(big.add(count, size), big.whole(2)))
    return {"low": big.to_bytes(big.at_least(big.minus(spread, room), 0)), "high": big.to_bytes(big.add(spread, room))}


def quotients(big: BigIntegers, call: AggregateCall, column: Mapping[str, Any]) -> dict[str, Any]:
    count = big.at_least_one(big.of_long(column[call.name("n")]))
    found = {}
    for name, end in (("v", "low"), ("w", "high")):
        number = big.read(column[call.name(end)])
        if call.kind == "Sum":
            found[name] = big.scale(number, _BOUND)
        elif call.kind == "Average":
            found[name] = big.divide_by_small(number, count, _BOUND)
        else:
            less = big.at_least_one(big.minus(count, big.one)) if call.kind.endswith("Samp") else count
            make = big.root_of if call.kind.startswith("Stddev") else big.divide_by_small
            found[name] = make(number, big.times(count, less), BOUNDED.products.low)
    return found


def result(call: AggregateCall, failure: str) -> str:
    count, low, high, off = (call.name(each) for each in ("n", "v", "w", "off"))
    alone = 1 if call.kind.endswith("Samp") else 0
    missed = f"when {off} is null or {low} <> {high} then cast(raise_error('{failure}') as double)"
    return f"case when {count} <= {alone} then null {missed} else {low} end as {call.name('r')}"
