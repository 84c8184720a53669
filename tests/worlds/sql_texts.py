"""Statements of SQL by lot: valid ones with nested WITHs that hide each other's names, and mutants of any.

A valid statement knows which of its names are datasets, by SQL's scopes as DuckDB has them. All queries of the grammar
give the columns ``city`` and ``people``, so that any can stand for any other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

NAMES: Final = (
    "t", "u", "T", '"t"', "current.t", "a.b", '"g h"', "ü", '"é"', '"É"', '"\u212a"', "k", "duckdb_views",
    '"DUCKDB_VIEWS"', '"duc\u212adb_views"', "sqlite_master", "duckdb_databases", "recurring.t", "main.t",
    "information_schema.tables", "'t'", "'canary.csv'", '"in/canary.parquet"', '"odfd 0"',
)  # fmt: skip
"""Names of datasets, of tables of a WITH, and of what DuckDB has itself."""
SEEDS: Final = (
    "select * from t", "from t", "from t select city, #2", "with t as (from t) from t, u", "values (1), (2)",
    "with recursive n as (select * from n union all select * from n where false) select * from n",
    "with recursive n(a, b) as (select city, people from t union all select a, b + 1 from n where b < 3) from n",
    "with recursive n(a, b) using key (a) as (select 1, 2 union select a, b + 1 from recurring.n where b < 4) from n",
    "with recursive n(a, b) using key (a) as (select 1, 2 union select n.a, n.b + 1 from n, recurring.n r) from n",
    'with "duc\u212adb_views" as (select 1) select * from duckdb_views',
    "with a as materialized (select 1 x), b as (from a) select * from b, (with a as (from u) from a) c",
    "select * from (with t as (from u) select * from t) x, t",
    "select (select max(people) from u where u.city = t.city) from t",
    "select * from t, lateral (select * from u where u.city = t.city) l",
    "select * from t join lateral (from u) on true",
    "from t, unnest([t.people, 1]) as x(y), range(2), generate_series(1, 2), json_each('[1]')",
    "select * from range((select min(people) from t))", "select unnest([city]) from t",
    "select * from t where exists (select 1 from u) and city in (select city from u)",
    "select columns(*)::varchar from t", "select columns('ci.*|people') from t",
    "select * exclude (op) replace (1 as people) from t",
    "select sum(people) over w, rank() over w, lag(people) over (order by city) from t window w as (order by people)",
    "from t qualify row_number() over (partition by city order by people) = 1",
    "select distinct on (city) * from t limit 10%",
    "select city, count(*) filter (people > 1), grouping(city) from t group by rollup (city) having count(*) > 0",
    "select * from t asof join u on t.people >= u.people", "from t positional join u", "from t using sample 3",
    "from t semi join u using (city)", "from t natural join u", "from (from t) union by name (from u)",
    "from t except from u", "from t intersect all from u order by all limit 3 offset 1",
    "select list_transform([people], lambda x: x + 1), [x for x in [1, 2] if x > 1], {'a': people}.a from t",
    "select case when people > 1 then try_cast(city as int) else try(1 / people) end from t",
    "pivot t on city using sum(people)", "unpivot t on people into name n value v",
    "from (pivot t on city using count(*))", "from (unpivot t on people into name n value v)", "summarize t",
    "describe t", "show tables", "from (describe t)", "from (summarize t)", "from (show tables)", "explain select 1",
    "select * from 'in/canary.csv'", "from read_csv('in/canary.csv')", "from glob('*')", "from duckdb_settings()",
    "from query('from t')", "from query_table('t')", "from system.main.duckdb_views", "from memory.main.t",
    "from temp.t", "from system.information_schema.tables", "from pg_catalog.pg_class", 'from memory.main."odfd 0"',
    "select current_setting('temp_directory'), getenv('HOME'), getvariable('x')",
    "select main.upper(city), system.main.sum(people) from t", "select t.city, current.t.people from current.t",
    "from t at block '#1' as x", "from t for system_time as of '2024-05-01' w", "from t at (version => 1)",
    "select ?, $1, $x from t", "table t", "(from t)", "((from t) order by 1) limit 1",
    "select rowid, filename from t",
)  # fmt: skip


def endless(name: str) -> str:
    """A statement over a dataset that never ends by itself, and takes no memory."""
    return f"with recursive r as (select 1 n union all select n from r) select count(*) from r, {name}"


_TOKEN: Final = re.compile(r"""'(?:''|[^'])*'|"(?:""|[^"])*"|\w+|\s+|[<>=!|:]+|.""", re.DOTALL)
_WORDS: Final = (
    *NAMES, "select", "from", "where", "with", "recursive", "as", "materialized", "union all", "union", "except",
    "lateral", "using key (city)", "exists", "in", "not", "(", ")", "((", "))", "*", ",", ".", ";", "--", "/*", "*/",
    "$$", "main.", "memory.", "temp.", "system.", "recurring.", "pivot", "unpivot", "describe", "summarize", "show",
    "null", "1", "2", "#1", "?", "city", "people", "op", "rowid", "columns(*)", "range(2)", "unnest([1])",
    "read_text('in/canary.csv')", "glob('*')", "at block '#1'", "as of '2024-05-01'", "limit 1", "order by all",
    "group by all", "over ()", "\u212a", "\u00a0", "\ufeff",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    """A valid statement: its text, and the names that are datasets, in order."""

    text: str
    datasets: tuple[str, ...]
    read: frozenset[int]
    """Which of the datasets are read: tables of a WITH that nobody reads are not even bound."""


@dataclass(slots=True)
class _Query:
    text: str
    reads: list[object] = field(default_factory=list)
    """Numbers of datasets, and queries behind names of a WITH."""


_TWO: Final = {
    1: "select city, people from {} s where exists (select 1 from ({}) o where o.city = s.city)",
    2: "select s.city, l.people from {} s, lateral (select people from ({}) where city = s.city) l",
    3: "(select city, people from {}) union all ({})",
    4: "select city, (select max(people) from ({1})) as people from {0} s",
}
"""Queries of a source and another query."""


class Grammar:
    """Makes valid statements from a seed."""

    def __init__(self, lot: random.Random) -> None:
        self._lot = lot
        self._datasets: list[str] = []

    def statement(self, depth: int = 5) -> Statement:
        """Makes a statement with queries in queries, to a depth by lot."""
        self._datasets = []
        whole = self._query({}, self._lot.randint(1, depth))
        order = [int(each) for each in re.findall("\x01(\\d+)\x02", whole.text)]
        text = re.sub("\x01(\\d+)\x02", lambda found: self._datasets[int(found[1])], whole.text)
        read: set[int] = set()
        waiting: list[object] = [whole]
        seen: list[object] = []
        while waiting:
            each = waiting.pop()
            if isinstance(each, int):
                read.add(order.index(each))
            elif isinstance(each, _Query) and not any(each is other for other in seen):
                seen.append(each)
                waiting += each.reads
        return Statement(text, tuple(self._datasets[each] for each in order), frozenset(read))

    def _query(self, scope: dict[str, _Query], depth: int) -> _Query:
        made = _Query("")
        if depth > 0 and self._lot.random() < 0.6:
            made.text, scope = self._with(scope, depth - 1)
        made.text += self._select(made, scope, depth)
        return made

    def _with(self, scope: dict[str, _Query], depth: int) -> tuple[str, dict[str, _Query]]:
        """Returns the clause, and the names in scope behind it. A table sees those before it; its own name is in scope
        in the step that repeats."""
        scope = dict(scope)
        parts: list[tuple[str, str]] = []
        recursive = self._lot.random() < 0.5
        own = [name for name in NAMES if name.startswith('"') or not set(name) & set(".'")]
        for name in self._lot.sample(own, self._lot.randint(1, 3)):
            if _key(name) in {_key(each) for each, _ in parts}:
                continue
            made = self._query(scope, depth)
            if recursive and self._lot.random() < 0.6:
                step = f"select city, people + 1 from {self._spelt(name)} where people < 3"
                made.text = f"({made.text}) union all {step}"
            else:  # or a UNION of its own would repeat
                made.text = f"select city, people from ({made.text}) z"
            how = self._lot.choice(("", "", " materialized", " not materialized"))
            parts.append((name, f"{name}(city, people) as{how} ({made.text})"))
            scope[_key(name)] = made
        return f"with {'recursive ' if recursive else ''}{', '.join(part for _, part in parts)} ", scope

    def _spelt(self, name: str) -> str:
        """Returns a name in other letters, where that is the same name."""
        bare = name.strip('"')
        return self._lot.choice((name, f'"{bare.upper()}"' if bare.isascii() else name))

    def _select(self, made: _Query, scope: dict[str, _Query], depth: int) -> str:
        way = self._lot.randrange(9) if depth > 0 else 0
        source = self._source(made, scope, depth)
        if way in _TWO:
            other = self._query(scope, depth - 1)
            made.reads += other.reads
            return _TWO[way].format(source, other.text)
        if way == 5:
            return f"select city, sum(people) over (order by city)::bigint as people from {source} s, range(1) r"
        if way == 6:
            return f"from {source} s select columns('city|people')"
        if way == 7:
            return f"select s.city, x.y as people from {source} s, unnest([s.people]) x(y)"
        return f"select city, people from {source} s"

    def _source(self, made: _Query, scope: dict[str, _Query], depth: int) -> str:
        if depth > 0 and self._lot.random() < 0.2:
            inner = self._query(scope, depth - 1)
            made.reads += inner.reads
            return f"({inner.text})"
        name = self._lot.choice((*NAMES, *(f'"{each}"' for each in scope)))
        if (known := scope.get(_key(name))) is not None:
            made.reads.append(known)
            return self._spelt(name) if not name.startswith("'") else name
        self._datasets.append(name)
        made.reads.append(len(self._datasets) - 1)
        return f"\x01{len(self._datasets) - 1}\x02"


def _key(name: str) -> str:
    """Returns a name as DuckDB compares it: without quotes, and with the letters of ASCII lowered."""
    if "." in name and not name.startswith(('"', "'")):
        return name
    return name.strip("\"'").encode().lower().decode()


def mutated(lot: random.Random, text: str, other: str) -> str:
    """Changes a text by words: they are replaced, left out, doubled, taken from another text, or wrapped."""
    words = _TOKEN.findall(text) or [""]
    for _ in range(lot.randint(1, 3)):
        place, way = lot.randrange(len(words)), lot.randrange(12)
        if way < 4:
            names = [each for each, word in enumerate(words) if word.isidentifier() or word[0] in "'\""]
            words[lot.choice(names or [0])] = lot.choice(NAMES)
        elif way == 4:
            words[place] = lot.choice(_WORDS)
        elif way == 5:
            words.insert(place, f" {lot.choice(_WORDS)} ")
        elif way == 6:
            words[place : place + lot.randint(1, 3)] = [" "]
        elif way == 7:
            words[place:place] = words[place : place + lot.randint(1, 6)]
        elif way == 8:
            taken = _TOKEN.findall(other) or [""]
            start = lot.randrange(len(taken))
            words[place : place + 1] = taken[start : start + lot.randint(1, 9)]
        else:
            words = _TOKEN.findall(_wrapped(lot, "".join(words), other))
    return "".join(words)[:2000]


def _wrapped(lot: random.Random, text: str, other: str) -> str:
    name = lot.choice(NAMES)
    return lot.choice(
        (
            f"with {name} as ({text}) {other}",
            f"with recursive {name} as (({other}) union all ({text})) from {lot.choice(NAMES)}",
            f"with recursive {name} as ({text} union all from {name} where false) from {name}",
            f"select * from ({text}) a, ({other}) b", f"select * from ({text}) a, lateral ({other}) b",
            f"({text}) union all by name ({other})", f"select exists ({text}), ({other})", f"from ({text}) {name}",
        )
    )  # fmt: skip


def by_lot(lot: random.Random, grammar: Grammar, grown: Sequence[str]) -> str:
    """Returns a mutant of a seed, of a valid statement, or of a mutant that was accepted."""
    parents = (SEEDS, grown, (grammar.statement(2).text,))
    first, second = (lot.choice(lot.choice([each for each in parents if each])) for _ in range(2))
    return mutated(lot, first, second)
