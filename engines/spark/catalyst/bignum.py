"""Makes Catalyst expressions that compute with ``java.math.BigInteger``, to be evaluated once for every group.

Expressions call the methods of the JDK (``Invoke``), so nothing has to be compiled or shipped, and executors of a
cluster have it too. Every method returns an expression (a JVM object); nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from engines.spark.analysis.exact import FINEST

_BITS: Final = 66
"""Bits of a quotient or root before it is rounded: more than a double has, and one that says whether
there is a remainder."""
_ROOM: Final = 110
"""Bits of a fixed shift: even the least number divided by one of 40 bits then has ``_BITS``, and so has its root."""


class BigIntegers:
    """Makes expressions in one JVM."""

    def __init__(self, jvm: Any, read: Callable[[str], Any]) -> None:
        """``read``: parses SQL to an expression."""
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        types = jvm.org.apache.spark.sql.types
        named = jvm.java.lang.Class.forName
        self._jvm = jvm
        self._read = read
        self._expressions = expressions
        self._objects = expressions.objects
        self._integer, self._decimal, self._math = (
            named(f"java.{name}") for name in ("math.BigInteger", "math.BigDecimal", "lang.Math")
        )
        self._big = types.ObjectType(self._integer)
        self._exact = types.ObjectType(self._decimal)
        self._int, self._long, self._double, self._bytes = (
            _one(types, name) for name in ("IntegerType", "LongType", "DoubleType", "BinaryType")
        )
        self._none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        self._empty = jvm.PythonUtils.toSeq([])
        self.one = self.whole(1)

    def whole(self, value: int) -> Any:
        return self.of_long(self._literal(value, self._long))

    def of_long(self, value: Any) -> Any:
        """Converts a BIGINT; null counts as 0."""
        return self._static(self._integer, self._big, "valueOf", self._or_zero(value))

    def limbs(self, sums: Sequence[Any], width: int) -> Any:
        """Combines sums of limbs, lowest first, to a number in units of the grid."""
        total = self.of_long(sums[-1])
        for each in reversed(sums[:-1]):
            total = self.add(self.shift(total, width), self.of_long(each))
        return total

    def unscale(self, value: Any, scale: int) -> Any:
        """Returns the unscaled whole number of a DECIMAL."""
        exact = self._call(value, "toJavaBigDecimal", self._exact)
        return self._call(self._call(exact, "setScale", self._exact, self._number(scale)), "unscaledValue", self._big)

    def limb(self, whole: Any, number: int, width: int, last: bool) -> Any:
        """Returns bits of a whole number as a BIGINT, lowest limb first; the last limb has the sign."""
        part = self._call(self.shift(whole, -width * number), "longValue", self._long)
        return part if last else self._expressions.BitwiseAnd(part, self._literal(2**width - 1, self._long))

    def decimal(self, whole: Any, scale: int, by: Any, kind: Any, tries: bool) -> Any:
        """Divides ``whole / by`` to a DECIMAL of a type, as Spark divides; ``whole`` has scale ``scale``.

        A value that does not fit is an error, or null with ``tries``.
        """
        value = self._new(self._decimal, self._exact, whole, self._number(scale))
        if by is not None:
            places, half_up = self._number(39), self._number(4)
            value = self._call(value, "divide", self._exact, self._new(self._decimal, self._exact, by), places, half_up)
        sql = self._jvm.java.lang.Class.forName("org.apache.spark.sql.types.Decimal")
        return self._expressions.CheckOverflow(self._static(sql, kind, "apply", value), kind, tries)

    def add(self, one: Any, other: Any) -> Any:
        return self._call(one, "add", self._big, other)

    def minus(self, one: Any, other: Any) -> Any:
        return self._call(one, "subtract", self._big, other)

    def times(self, one: Any, other: Any) -> Any:
        return self._call(one, "multiply", self._big, other)

    def at_least_one(self, value: Any) -> Any:
        return self.at_least(value, 1)

    def at_least(self, value: Any, least: int) -> Any:
        return self._call(value, "max", self._big, self.whole(least))

    def absolute(self, value: Any) -> Any:
        return self._call(value, "abs", self._big)

    def shift(self, value: Any, bits: Any) -> Any:
        """Shifts to the left by ``bits``, an expression or a number."""
        return self._call(value, "shiftLeft", self._big, self._number(bits))

    def to_bytes(self, value: Any) -> Any:
        return self._call(value, "toByteArray", self._bytes)

    def read(self, column: Any) -> Any:
        return self._new(self._integer, self._big, column)

    def sum_of(self, values: Any, element: Any, fields: Sequence[int | None]) -> Any:
        """Sums, over an array of elements of type ``element``, products of one or two doubles. Each factor is a field
        of the element, or (``None``) the element itself; the sum is in units of two to ``FINEST`` for each factor."""
        fresh = self._jvm.org.apache.spark.sql.catalyst.expressions.NamedExpression.newExprId
        variable = self._expressions.NamedLambdaVariable
        cell = self._jvm.java.util.concurrent.atomic.AtomicReference
        total = variable("total", self._big, True, fresh(), cell())
        each = variable("each", element, True, fresh(), cell())
        unit = self.shift(self.one, -FINEST * len(fields))
        product = self._new(self._decimal, self._exact, unit)
        for at in fields:
            number = each if at is None else self._expressions.GetStructField(each, at, self._none)
            product = self._call(product, "multiply", self._exact, self._new(self._decimal, self._exact, number))
        added = self.add(total, self._call(product, "toBigInteger", self._big))
        merge = self._expressions.LambdaFunction(added, self._jvm.PythonUtils.toSeq([total, each]), False)
        result = variable("result", self._big, True, fresh(), cell())
        finish = self._expressions.LambdaFunction(result, self._jvm.PythonUtils.toSeq([result]), False)
        return self._expressions.ArrayAggregate(values, self.whole(0), merge, finish)

    def divide(self, number: Any, by: Any, exponent: int) -> Any:
        """Returns ``number / by * 2**exponent`` as the nearest double; ``by`` is positive."""
        shift = self._sum(self._number(_BITS), self._bits(by), self._minus(self._bits(number)))
        whole = self.shift(self._call(number, "abs", self._big), self._at_least_zero(shift))
        by = self.shift(by, self._at_least_zero(self._minus(shift)))
        quotient, rest = (self._call(whole, name, self._big, by) for name in ("divide", "mod"))
        size = self._scale_with_rest(quotient, rest, self._sum(self._number(exponent - 1), self._minus(shift)))
        return self.with_sign(size, number)

    def root(self, number: Any, by: Any, exponent: int) -> Any:
        """Returns the square root of ``number / by * 2**exponent`` as a double. ``number >= 0``, ``by >
        0``, even exponent."""
        bits = self._sum(self._number(2 * _BITS), self._bits(by), self._minus(self._bits(number)))
        half = self._static(self._math, self._int, "floorDiv", bits, self._number(2))
        up, down = self._at_least_zero(half), self._at_least_zero(self._minus(half))
        whole, by = self.shift(number, self._sum(up, up)), self.shift(by, self._sum(down, down))
        root = self._call(self._call(whole, "divide", self._big, by), "sqrt", self._big)
        rest = self.minus(whole, self.times(self.times(root, root), by))
        return self._scale_with_rest(root, rest, self._sum(self._number(exponent // 2 - 1), self._minus(half)))

    def scale(self, number: Any, exponent: int) -> Any:
        """Returns ``number * 2**exponent`` as the nearest double, which must not be a subnormal one."""
        value = self._call(number, "doubleValue", self._double)
        return self._static(self._math, self._double, "scalb", value, self._number(exponent))

    def divide_by_small(self, number: Any, by: Any, exponent: int) -> Any:
        """Computes ``rounded`` where ``by`` has up to 40 bits: a fixed shift suffices, in a plan a third as large."""
        whole = self.shift(self.absolute(number), _ROOM)
        quotient, rest = (self._call(whole, name, self._big, by) for name in ("divide", "mod"))
        size = self._scale_with_rest(quotient, rest, self._number(exponent - 1 - _ROOM))
        return self.with_sign(size, number)

    def root_of(self, number: Any, by: Any, exponent: int) -> Any:
        """Computes ``root`` where ``by`` has up to 40 bits: with a fixed shift, as ``divided``."""
        whole = self.shift(number, 2 * _ROOM)
        root = self._call(self._call(whole, "divide", self._big, by), "sqrt", self._big)
        rest = self.minus(whole, self.times(self.times(root, root), by))
        return self._scale_with_rest(root, rest, self._number(exponent // 2 - 1 - _ROOM))

    def with_sign(self, size: Any, of: Any) -> Any:
        """Returns the double ``size`` with the sign of a whole number."""
        return self._static(self._math, self._double, "copySign", size, self._call(of, "doubleValue", self._double))

    def _scale_with_rest(self, whole: Any, rest: Any, exponent: Any) -> Any:
        """Returns ``whole * 2 + (1 if there is a rest)``, times two to ``exponent``, as a double."""
        more = self.of_long(self._static(self._math, self._long, "multiplyFull", self.sign(rest), self._number(1)))
        number = self._call(self.add(self.shift(whole, 1), more), "doubleValue", self._double)
        return self._static(self._math, self._double, "scalb", number, exponent)

    def sign(self, value: Any) -> Any:
        """Returns -1, 0 or 1, an INT."""
        return self._call(value, "signum", self._int)

    def _bits(self, value: Any) -> Any:
        return self._call(value, "bitLength", self._int)

    def _sum(self, first: Any, *others: Any) -> Any:
        for other in others:
            first = self._static(self._math, self._int, "addExact", first, other)
        return first

    def _minus(self, value: Any) -> Any:
        return self._static(self._math, self._int, "negateExact", value)

    def _at_least_zero(self, value: Any) -> Any:
        return self._static(self._math, self._int, "max", value, self._number(0))

    def _or_zero(self, value: Any) -> Any:
        return self._expressions.Coalesce(self._seq(value, self._literal(0, self._long)))

    def _number(self, value: Any) -> Any:
        return self._literal(value, self._int) if isinstance(value, int) else value

    def _literal(self, value: int, kind: Any) -> Any:
        return self._read(f"{value}L" if kind is self._long else str(value))

    def _static(self, of: Any, kind: Any, name: str, *arguments: Any) -> Any:
        return self._objects.StaticInvoke(
            of, kind, name, self._seq(*arguments), self._empty, True, False, True, self._none
        )

    def _call(self, target: Any, name: str, kind: Any, *arguments: Any) -> Any:
        return self._objects.Invoke(target, name, kind, self._seq(*arguments), self._empty, True, False, True)

    def _new(self, of: Any, kind: Any, *arguments: Any) -> Any:
        return self._objects.NewInstance(of, self._seq(*arguments), self._empty, True, kind, self._none)

    def _seq(self, *values: Any) -> Any:
        return self._jvm.PythonUtils.toSeq(list(values))


def _one(types: Any, name: str) -> Any:
    return getattr(getattr(types, name + "$"), "MODULE$")
