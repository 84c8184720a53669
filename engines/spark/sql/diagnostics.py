"""Makes diagnostics of queries from faults of all kinds: of the walk, a limit, Spark, another dialect, a failing
constant.

Also joins everything that is wrong with a transform into one refusal.

Spark's errors of a query or a row are explained to people: rule, place, remedy, and whether query, data or engine is at
fault. Constants that fail for every row (an invalid regular expression, a division by zero, ``cast('abc' as int)``) are
found in a plan from which unused columns were removed, so that the query is refused before its first row; Spark's own
evaluation says which fail. Expressions that may never be evaluated are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, Transform
from engines.contract import Diagnostic, InvalidQuery, Severity
from engines.spark.analysis.determinism import QueryFinding, arguments
from engines.spark.analysis.lexical import Phrase
from engines.spark.analysis.refusals import HOP_CALENDAR, QueryRefused
from engines.spark.analysis.tree import PlanNode, parse_plan
from engines.spark.catalyst.expressions import Catalyst
from engines.spark.catalyst.plans import (
    counterpart,
    frame_of,
    inline_ctes,
    json_of,
    jvm_object,
    origin_of,
    place_of,
    text_of,
)

_CONF_ADVICE: Final = re.compile(r" (If necessary set|To tolerate the error|If you did not qualify) .*?(?=SQLSTATE|$)")
"""Advice in Spark's messages that would not help: a query cannot change settings."""
_TRY_ADVICE: Final = re.compile(r" (Use|Try) [`']?(try_\w+|get)\b.*?(?= SQLSTATE|$)")
"""Advice in Spark's messages that our hint gives in fewer words."""
_LABELS: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] | SQLSTATE: \w{5}")
"""Names of the condition in a message, which the rule repeats."""
_POSITION: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_CONTEXT: Final = re.compile(r"== SQL.*\(line (\d+), position (\d+)\) ==")
_BLAME_QUERY: Final = ("0A", "21", "22", "23", "42", "46", "54")
"""Classes of SQLSTATE by which the query or its data is at fault; by the others the engine is."""
_DATA: Final = "22"
Answer = TypeVar("Answer")
NOT_DETERMINISTIC: Final = (
    "leave out what is drawn by chance or read from a clock: take event_time and the other columns of the inputs"
)
_COLUMN: Final = "select a column that the input has; `odfctl schema` lists them"
_TYPES: Final = "cast one side to the type of the other: cast(x as bigint)"
_VALUE: Final = "write a value that the function takes, as it says"
_CAST: Final = "try_cast(x as …) gives null where a value cannot be read as that type"
_HINTS: Final[Mapping[str, str]] = {
    "PARSE_SYNTAX_ERROR": "correct the query before or at this position: a comma, bracket or keyword "
    "is missing or too much",
    "PARSE_EMPTY_STATEMENT": "write a SELECT",
    "UNRESOLVED_COLUMN": _COLUMN,
    "UNRESOLVED_MAP_KEY": "write a key that is a text in single quotes",
    "UNRESOLVED_FIELD": "name a field that the structure has",
    "FIELD_NOT_FOUND": "name a field that the structure has",
    "UNRESOLVED_ROUTINE": "use a function that odfctl docs functions lists",
    "TABLE_OR_VIEW_NOT_FOUND": "select from an input, by the alias that the transform gives it",
    "AMBIGUOUS_REFERENCE": "write the table before the column: a.k",
    "AMBIGUOUS_COLUMN_OR_FIELD": "give each column a name of its own: x as y",
    "COLUMN_ALREADY_EXISTS": "give each column a name of its own: x as y",
    "DATATYPE_MISMATCH": _TYPES,
    "DATATYPE_MISMATCH.VALUE_OUT_OF_RANGE": _VALUE,
    "DATATYPE_MISMATCH.INPUT_SIZE_NOT_ONE": _VALUE,
    "DATATYPE_MISMATCH.INVALID_ARG_VALUE": _VALUE,
    "INVALID_FORMAT": "write digits as 9 or 0 and a point as '.': '999.99'",
    "INVALID_TIMESTAMP_PRECISION": "write timestamp without digits",
    "INCOMPATIBLE_COLUMN_TYPE": _TYPES,
    "CAST_INVALID_INPUT": _CAST,
    "NUM_COLUMNS_MISMATCH": "select as many columns on both sides",
    "WRONG_NUM_ARGS": "give the function the arguments that odfctl docs functions lists",
    "MISSING_AGGREGATION": "name the column in GROUP BY, or aggregate it: max(x)",
    "MISSING_GROUP_BY": "add a GROUP BY, or aggregate every column",
    "GROUP_BY_AGGREGATE": "group by columns, and aggregate in a query around this one",
    "GROUP_BY_POS_OUT_OF_RANGE": "number columns of the SELECT from one",
    "NESTED_AGGREGATE_FUNCTION": "aggregate once more in a query around this one",
    "INVALID_WHERE_CONDITION": "filter what is aggregated with HAVING",
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": "write OVER (partition by … order by …) behind the function",
    "INVALID_EXTRACT_BASE_FIELD_TYPE": "take fields of structures alone; a name in double quotes is a text: `a`.b",
    "UNSUPPORTED_TYPED_LITERAL": "write the text in single quotes, and a name in backticks",
    "INVALID_TYPED_LITERAL": "write it like date'2024-05-01', timestamp'2024-05-01 12:30:00' or interval '1' day",
}
_OVERFLOW: Final = "cast to a wider type first: cast(x as decimal(38, 0)); or try_add, try_multiply give null"
_OWN: Final = "__odf_"
_SUM: Final = f"{_OWN}hi"
"""In texts of the engine itself, which computes aggregates exactly in words of its own; so it is in no query."""
_WIDER: Final = "sum a wider type: sum(cast(x as decimal(38, 0))); or try_sum(x), which is null then"
_TIMESTAMP: Final = "try_to_timestamp(x, pattern) gives null where a text is not written so"
_OTHERWISE: Final = "change the query at this position; Spark's message names the part that it does not accept"
_DATA_HINTS: Final[Mapping[str, str]] = {
    "ARITHMETIC_OVERFLOW": _OVERFLOW,
    "BINARY_ARITHMETIC_OVERFLOW": _OVERFLOW,
    "CANNOT_PARSE_TIMESTAMP": _TIMESTAMP,
    "CANNOT_PARSE_TIME": "try_to_time(x, pattern) gives null where a text is not written so",
    "CAST_INVALID_INPUT": _CAST,
    "CAST_OVERFLOW": "try_cast(x as …) gives null where a value does not fit; a wider type holds it",
    "CONVERSION_INVALID_INPUT": "try_to_number, try_to_timestamp or try_to_binary gives null where it cannot be read",
    "DATETIME_FIELD_OUT_OF_BOUNDS": "try_make_timestamp gives null where there is no such day or time",
    "DIVIDE_BY_ZERO": "try_divide(a, b) gives null where b is zero; for whole numbers a div nullif(b, 0) does",
    "INTERVAL_DIVIDED_BY_ZERO": "try_divide(a, b) gives null where b is zero",
    "INTERVAL_ARITHMETIC_OVERFLOW": _OVERFLOW,
    "INVALID_ARRAY_INDEX": "get(array, index), which counts from zero, gives null where there is no such element",
    "INVALID_ARRAY_INDEX_IN_ELEMENT_AT": "try_element_at(array, index) gives null where there is no such element",
    "INVALID_PARAMETER_VALUE": "write a value that the function takes: of a regular expression with every ( and [ "
    r"closed, or a backslash before it, as in '\\('; of a charset 'UTF-8'",
    "INVALID_TIMEZONE": "write a zone like 'Europe/Vienna', or 'UTC'",
    "INVALID_FORMAT": r"end the pattern with no escape character, and have one before %, _ or itself alone: '100\\%'",
    "INVALID_URL": "try_parse_url gives null where a text is no address",
    "MALFORMED_RECORD_IN_PARSING": "try_parse_json gives null where a text is no JSON",
    "NUMERIC_VALUE_OUT_OF_RANGE": "cast to a type with more digits: decimal(38, 6); try_cast gives null instead",
    "REMAINDER_BY_ZERO": "try_mod(a, b) gives null where b is zero",
}
"""Hints for errors caused by a value of a row in a query that is right in itself, by condition."""
_DATA_OTHERWISE: Final = "keep such values from it: case when … then … end, or where before it"


def answer_faults(work: Callable[[], Answer], transform: Transform) -> Answer | InvalidQuery:
    """Returns the result of ``work``, or as an answer its faults in ``transform``'s
    queries or data. Raises engine faults."""
    try:
        return work()
    except Invalid as fault:
        return InvalidQuery.of(fault)
    except PySparkException as fault:
        if not blames_query(fault):
            raise
        return InvalidQuery.of(fault_of(fault, transform))


def blames_query(fault: PySparkException) -> bool:
    """Whether an error of Spark is a fault of the query or the data, and not of the engine."""
    return (fault.getSqlState() or "XX").startswith(_BLAME_QUERY)


def blames_data(fault: PySparkException) -> bool:
    """Whether an error is a fault of the data, with a valid query."""
    return (fault.getSqlState() or "XX").startswith(_DATA)


def fault_of(fault: PySparkException, transform: Transform) -> Invalid:
    """Converts Spark's error of a query, or of a row that one of its expressions cannot take. The condition's name
    becomes the rule; place and text of the expression are given where Spark knows them, with a remedy."""
    condition = fault.getCondition()
    context, position = _CONTEXT.search(str(fault)), place_in(fault)
    place, named, text = "", "", _fragment(fault)
    if _SUM in text:
        return Invalid("a sum does not fit its type, BIGINT", rule=rule_of(condition), hint=_WIDER)
    if context is not None and _OWN not in text:
        line, column = int(context[1]), int(context[2])
        place = f"{_query_with(text, line, column, transform)}line {line}, column {column}"
        named = _in(text)
    elif position is not None:
        place = f"line {position[0]}, column {position[1]}"
    hint = hint_of_data(condition) if blames_data(fault) else hint_of(condition)
    return Invalid(f"{message_of(fault)}{named}", rule=rule_of(condition), place=place, hint=hint)


def place_in(fault: PySparkException) -> tuple[int, int] | None:
    """Returns the (line, column) in the query that an error names, both counted from 1, or ``None``."""
    found = _POSITION.search(str(fault))
    return (int(found[1]), int(found[2]) + 1) if found is not None else None


def message_of(fault: PySparkException) -> str:
    """Returns Spark's message, without the rule and the hint."""
    return _LABELS.sub("", _TRY_ADVICE.sub("", _plain_words(fault))).strip().removesuffix(".")


def _query_with(fragment: str, line: int, column: int, transform: Transform) -> str:
    """Returns ``query N, `` if exactly one of several queries has the fragment at this place, else an empty text."""
    steps = transform.queries or ()
    first = fragment.partition("\n")[0]
    lines = [[*step.query.split("\n"), *[""] * line][line - 1] for step in steps]
    found = [number for number, text in enumerate(lines) if first and text[column - 1 :].startswith(first)]
    return f"query {found[0]}, " if len(steps) > 1 and len(found) == 1 else ""


def rule_of(condition: str | None) -> str:
    """Converts a condition of Spark's, as ``DIVIDE_BY_ZERO``, to the form of rules, without its subcondition."""
    return (condition or "parse").partition(".")[0].lower().replace("_", "-")


def first_lines(fault: PySparkException) -> str:
    place = _CONTEXT.search(str(fault))
    where = f" (line {place[1]}, column {int(place[2])}{_in(_fragment(fault))})" if place is not None else ""
    return _plain_words(fault) + where


def _plain_words(fault: PySparkException) -> str:
    text = str(fault).split("JVM stacktrace:")[0].split("\n== ")[0].split(";\n")[0]
    return _CONF_ADVICE.sub(" ", " ".join(text.split()))[:1000]


def _fragment(fault: PySparkException) -> str:
    """Returns the text of the expression that failed on some row, or an empty text if Spark does not know it."""
    fragments = [context.fragment().strip() for context in fault.getQueryContext() or ()]
    return next((text for text in fragments if text), "")


def _in(fragment: str) -> str:
    return f" in: {' '.join(fragment.split())[:300]}" if fragment else ""


def hint_of(condition: str | None) -> str:
    """Returns the hint for a condition of Spark's, like ``UNRESOLVED_COLUMN.WITH_SUGGESTION``."""
    return _find_hint(_HINTS, condition) or _OTHERWISE


def hint_of_data(condition: str | None) -> str:
    """Returns the hint for a condition that a value of a row caused while the query ran."""
    return _find_hint(_DATA_HINTS, condition) or _DATA_OTHERWISE


def _find_hint(hints: Mapping[str, str], condition: str | None) -> str | None:
    """Looks up the hint of a condition, or else of the same with fewer and fewer of its parts;
    ``None``: none is known."""
    parts = (condition or "").split(".")
    while parts:
        known = hints.get(".".join(parts))
        if known is not None:
            return known
        parts.pop()
    return None


_RULES: Final = (
    "analysis.EliminateSubqueryAliases",
    "analysis.EliminateView",
    *("optimizer.ColumnPruning",) * 3,
)
"""Spark's rules that remove unused columns."""
UNREADABLE: Final = "INVALID_PARAMETER_VALUE.PATTERN"
"""Spark's condition for an invalid pattern, except in ``split``, where Java's exception comes through."""
_JAVA: Final = re.compile(r"PatternSyntaxException: ([^\n]+)")
MAX_TRIED: Final = 64
"""Most constants of one query that are tried."""
PATTERNS: Final = frozenset({
    "RLike", "Like", "ILike", "RegExpReplace", "RegExpExtract", "RegExpExtractAll", "RegExpInStr", "RegExpCount",
    "RegExpSubStr", "StringSplit",
})  # fmt: skip
"""Functions of a text and a pattern. Constant texts are not matched here, which could take long."""
_DIVISIONS: Final = frozenset({"Divide", "IntegralDivide", "Remainder", "Pmod"})
_BY_SECOND: Final = PATTERNS | _DIVISIONS | {"Encode", "Decode", "StringDecode", "NextDay"}
"""Functions that can fail by their second argument alone, whatever the first is; they
give null if the second is null."""
_SECOND: Final = 1
_PLAINLY_A_PATTERN: Final = re.compile(r"[\w\s%^$.|-]*")
_PLAINLY_A_DIVISOR: Final = re.compile(r"[1-9]")
_GUARDS: Final = {
    **dict.fromkeys(("If", "CaseWhen", "Coalesce", "And", "Or", "NaNvl", "AtLeastNNonNulls", "In", "InSet", "Elt"), 1),
    **dict.fromkeys(("Lag", "Lead"), 2),
    **dict.fromkeys(("TryEval", "LambdaFunction", "GetStructField", "GetArrayStructFields", "GetArrayItem"), 0),
    **dict.fromkeys(("GetMapValue", "ElementAt", "IsNull", "IsNotNull"), 0),
}
"""Expressions that may not evaluate all their arguments -> how many of the first ones they certainly evaluate."""
_AGGREGATE: Final = "AggregateExpression"
_FUNCTIONS: Final = frozenset({_AGGREGATE, "WindowExpression"})
"""Expressions around a function of many rows, which cannot be evaluated by itself, though its arguments can."""
_NO_VALUES: Final = _FUNCTIONS | {"Alias", "SortOrder"}
"""Expressions that are not evaluated by themselves."""
_PLAIN: Final = frozenset({"Literal", "UnaryMinus", "CreateArray", "CreateNamedStruct", "Cast"})
"""Expressions that never fail, except for casts of texts."""


@dataclass(frozen=True, slots=True)
class ConstantFailure:
    """An expression that fails for every row."""

    node: PlanNode
    expression: Any
    """The expression as an object of the JVM."""
    fault: PySparkException | str
    """Spark's error, or Java's message about an invalid pattern."""


def failing(session: SparkSession, plan: Any, root: PlanNode) -> list[ConstantFailure]:
    """Lists the expressions of an analysed plan that fail for every row; of nested ones the innermost.
    ``root``: the plan as a tree."""
    if next(trials(root), None) is None:
        return []
    try:
        pruned = _prune(session, plan)
        below = parse_plan(json_of(pruned))
    except (PySparkException, Py4JJavaError):  # the rules do not know this plan: faults will show when rows are read
        return []
    catalyst = Catalyst(session)
    tried = [(each, counterpart(pruned, below, each.node)) for each in islice(trials(below), MAX_TRIED)]
    calls = [(each, found, _call(session, each, found)) for each, found in tried if found is not None]
    if not calls or _fault(session, catalyst, [call for _, _, call in calls]) is None:
        return []
    failures: list[ConstantFailure] = []
    for each, found, call in reversed(calls):
        inside = {id(part.fields) for part in each.node.preorder()}
        if not any(id(known.node.fields) in inside for known in failures):
            failure = _failure(each.node, found, _fault(session, catalyst, [call]))
            failures += [failure] if failure is not None else []
    return failures[::-1]


def _prune(session: SparkSession, plan: Any) -> Any:
    plan = inline_ctes(session, plan)
    for rule in _RULES:
        plan = jvm_object(session, f"org.apache.spark.sql.catalyst.{rule}").apply(plan)
    return plan


def _call(session: SparkSession, trial: Trial, found: Any) -> Any:
    """Returns the expression with a default value in place of each argument that depends on rows."""
    plain = jvm_object(session, "org.apache.spark.sql.catalyst.expressions.Literal.default")
    children = found.children()
    for at in trial.variables:
        children = children.updated(at, plain(children.apply(at).dataType()))
    return found.withNewChildren(children) if trial.variables else found


def _fault(session: SparkSession, catalyst: Catalyst, calls: Sequence[Any]) -> PySparkException | Py4JJavaError | None:
    """Evaluates expressions over constants. Returns the error if any fails, else ``None``."""
    nothing = jvm_object(session, "org.apache.spark.sql.catalyst.plans.logical.OneRowRelation")
    try:
        frame = frame_of(session, catalyst.project([catalyst.alias(call, "x") for call in calls], nothing()))
        frame._jdf.collectAsList()  # not toArrow: Python cannot read values of every type
    except (PySparkException, Py4JJavaError) as fault:
        return fault
    return None


def _failure(node: PlanNode, found: Any, fault: PySparkException | Py4JJavaError | None) -> ConstantFailure | None:
    """Makes the failure for an error; ``None`` if there is none, or if it may not be the query's fault."""
    if isinstance(fault, PySparkException) and fault.getCondition() is not None:
        return ConstantFailure(node, found, fault)
    said = _JAVA.search(str(fault)) if node.kind in PATTERNS else None
    if said is not None:
        return ConstantFailure(node, found, said[1])
    by_itself = node.kind in PATTERNS and isinstance(fault, IllegalArgumentException)
    return ConstantFailure(node, found, str(fault).partition("\n")[0]) if by_itself else None


@dataclass(frozen=True, slots=True)
class Trial:
    """An expression that is evaluated for every row of its operator, and that may fail because of its constants."""

    node: PlanNode
    variables: tuple[int, ...] = ()
    """Arguments to replace by a default value; empty: all arguments are constant."""


def trials(plan: PlanNode) -> Iterator[Trial]:
    """Yields the trials of an analysed plan, inner expressions last."""
    for operator in plan.preorder():
        stack = [] if operator.kind == "Generate" else arguments(operator)
        if operator.kind == "Filter":
            stack = [part for each in stack for part in _conjuncts(each)]
        while stack:
            node = stack.pop()
            if node.kind in _FUNCTIONS:
                function, *beside = node.children
                stack += [function] if function.kind in _FUNCTIONS else _evaluated_children(function)
                stack += beside if node.kind == _AGGREGATE else ()
            elif _is_constant(node):
                if any(_may_fail(part) for part in node.preorder()):
                    yield Trial(node)
            else:
                if _may_fail_by_second(node):
                    yield Trial(node, _variables(node))
                stack += _evaluated_children(node)


def _may_fail_by_second(node: PlanNode) -> bool:
    if node.kind not in _BY_SECOND or len(node.children) <= _SECOND or not _is_constant(node.children[_SECOND]):
        return False
    second = node.children[_SECOND]
    while second.kind == "Cast":
        second = second.only
    if second.kind != "Literal":
        return True
    value = second.fields.get("value")
    if value is None or node.kind in _DIVISIONS:
        return value is not None and _PLAINLY_A_DIVISOR.search(str(value)) is None
    return node.kind not in PATTERNS or _PLAINLY_A_PATTERN.fullmatch(str(value)) is None


def _variables(node: PlanNode) -> tuple[int, ...]:
    """Lists the positions of arguments that depend on rows; of a pattern function also that of the text."""
    first = (0,) if node.kind in PATTERNS else ()
    return tuple(dict.fromkeys([*first, *(at for at, each in enumerate(node.children) if not _is_constant(each))]))


def _conjuncts(condition: PlanNode) -> list[PlanNode]:
    """Splits ``a and b``: it is evaluated like one filter after another."""
    if condition.kind != "And":
        return [condition]
    return [part for child in condition.children for part in _conjuncts(child)]


def _evaluated_children(node: PlanNode) -> tuple[PlanNode, ...]:
    return node.children[: _GUARDS.get(node.kind, len(node.children))]


def _is_constant(node: PlanNode) -> bool:
    return all(
        part.kind not in _NO_VALUES and part.kind not in PATTERNS and (part.kind == "Literal" or bool(part.children))
        for part in node.preorder()
    )


def _may_fail(node: PlanNode) -> bool:
    if node.kind == "Cast":
        return node.only.kind != "Literal" or node.only.type_name == "string"
    return node.kind not in _PLAIN


_CALENDAR_WINDOW: Final = re.compile(r"Intervals greater than a month is not supported \((.*)\)")


def diagnostic_at(finding: QueryFinding, plan: Any, root: PlanNode, query: int) -> Diagnostic:
    """Makes the diagnostic of query number ``query``, whose analysed plan is ``plan``, read into ``root``."""
    place = place_of(plan, root, finding.node) if finding.node is not None else finding.place
    line, column = place if place is not None else (None, None)
    return Diagnostic(
        code=finding.code,
        severity=Severity.ERROR,
        message=finding.message,
        query=query,
        line=line,
        column=column,
        replace=finding.replace,
    )


def diagnostic_of(fault: PySparkException, text: str, query: int) -> Diagnostic:
    """Converts Spark's error in query number ``query``, whose text is ``text``, with its
    place, and a remedy if known."""
    window = _CALENDAR_WINDOW.search(str(fault))
    if window is not None:
        return _calendar_window(window[1], text, query)
    line, column = place_in(fault) or (None, None)
    return Diagnostic(
        code=rule_of(fault.getCondition()),
        severity=Severity.ERROR,
        message=first_lines(fault),
        query=query,
        line=line,
        column=column,
        replace=hint_of(fault.getCondition()),
    )


def _calendar_window(interval: str, text: str, query: int) -> Diagnostic:
    """Makes the diagnostic for a window() of months. Spark does not report its place, so
    it is the interval's in the text."""
    at = max(text.find(f"'{interval}'"), text.find(f'"{interval}"'))
    return Diagnostic(
        code=HOP_CALENDAR.code,
        severity=Severity.ERROR,
        message=f"{HOP_CALENDAR.message}: {interval}",
        query=query,
        line=text.count("\n", 0, at) + 1 if at >= 0 else None,
        column=at - text.rfind("\n", 0, at) if at >= 0 else None,
        replace=HOP_CALENDAR.replace,
    )


def of_fault(fault: Invalid, query: int) -> Diagnostic:
    line, column = (fault.at if isinstance(fault, QueryRefused) else None) or (None, None)
    return Diagnostic(
        code=fault.rule or "invalid", severity=Severity.ERROR, message=fault.message, query=query, line=line,
        column=column, replace=fault.hint or None,
    )  # fmt: skip


def of_failure(failure: ConstantFailure, steps: Sequence[SqlQueryStep]) -> Diagnostic:
    fault, text, place = failure.fault, text_of(failure.expression), origin_of(failure.expression)
    condition = UNREADABLE if isinstance(fault, str) else fault.getCondition()
    said = f"the pattern is no regular expression: {fault}" if isinstance(fault, str) else message_of(fault)
    number = next((number for number, step in enumerate(steps) if step.query == text), None)
    line, column = place if place is not None and number is not None else (None, None)
    return Diagnostic(
        code=rule_of(condition), severity=Severity.ERROR, message=f"{said}: in every row that has a value here",
        query=len(steps) - 1 if number is None else number, line=line, column=column, replace=hint_of_data(condition),
    )  # fmt: skip


def of_phrase(phrase: Phrase, query: int) -> Diagnostic:
    line, column = phrase.place
    severity = Severity.ERROR if phrase.certain else Severity.WARNING
    return Diagnostic(
        code=phrase.code, severity=severity, message=phrase.message, query=query, line=line, column=column,
        replace=phrase.replace,
    )  # fmt: skip


def in_other_words(said: Diagnostic, phrases: Sequence[Phrase], *, fully: bool) -> list[Diagnostic]:
    """Reports phrases of another dialect as errors, in place of the error ``said`` that they cause.

    ``fully``: nothing of the query could be read, so ``said`` has nothing to add. If ``said`` has no place, it is taken
    to be caused by the phrases: it is found again once they are corrected.
    """
    certain = [of_phrase(phrase, said.query) for phrase in phrases if phrase.certain]
    here = said.line is None or any((each.line, each.column) == (said.line, said.column) for each in certain)
    return certain if certain and (fully or here) else [*certain, said]


def certainly(doubt: Diagnostic) -> Diagnostic:
    return msgspec.structs.replace(doubt, severity=Severity.ERROR)


def refusal(diagnostics: Sequence[Diagnostic], steps: int) -> Invalid:
    """Joins all errors of several queries, one per line, under the rule of the first."""
    first = diagnostics[0]
    if len(diagnostics) == 1:
        return Invalid(first.message, rule=first.code, hint=first.replace or "", place=_place(first, steps))
    remedies = dict.fromkeys(diagnostic.replace for diagnostic in diagnostics if diagnostic.replace)
    lines = (_line(diagnostic, steps, first.code) for diagnostic in diagnostics)
    return Invalid("\n".join(lines), rule=first.code, hint="; ".join(remedies))


def _line(diagnostic: Diagnostic, steps: int, rule: str) -> str:
    place = _place(diagnostic, steps)
    own = f" [{diagnostic.code}]" if diagnostic.code != rule else ""
    return f"{place}: {diagnostic.message}{own}" if place else f"{diagnostic.message}{own}"


def _place(diagnostic: Diagnostic, steps: int) -> str:
    query = [f"query {diagnostic.query}"] if steps > 1 else []
    line = [f"line {diagnostic.line}, column {diagnostic.column}"] if diagnostic.line is not None else []
    return ", ".join(query + line)
