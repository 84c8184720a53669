"""Words of other dialects, over words cut by a small lexer: ``tests/engine`` tries the same texts with Spark's own."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.spark.analysis.dialects import MAX_PHRASES, QUOTED, TEMPORAL, WINDOW, foreign, may_be_foreign
from engines.spark.analysis.lexical import MAX_SAID, Word
from worlds.dialect_rewrite import translated

COLUMNS = ("event_time", "v", "from", "a`b")
KEYWORDS = {"SELECT", "FROM", "JOIN", "AS", "ON", "FOR", "OF", "SYSTEM_TIME", "TABLE", "INTERVAL", "DATE", "TIMESTAMP",
            "WHERE", "GROUP", "BY", "LEFT", "OR", "AND", "IN", "LIKE", "MINUTE", "SECOND", "PARTITION"}  # fmt: skip
CUT = re.compile(r"""(?P<gap>\s+|--[^\n]*|/\*.*?\*/)|(?P<name>[A-Za-z_]\w*)|(?P<quoted>"(?:[^"\\]|\\.)*")"""
                 r"""|(?P<text>'(?:[^'\\]|\\.)*')|(?P<ticks>`(?:[^`]|``)*`)|(?P<number>\d+)|(?P<sign>=>|>=|<=|.)""",
                 re.DOTALL)  # fmt: skip
KINDS = {"quoted": "DOUBLEQUOTED_STRING", "text": "STRING_LITERAL", "ticks": "BACKQUOTED_IDENTIFIER",
         "number": "INTEGER_VALUE", "sign": "SIGN"}  # fmt: skip


def cut(sql):
    words = []
    for match in CUT.finditer(sql):
        if match.lastgroup == "gap":
            continue
        line, column = sql.count("\n", 0, match.start()) + 1, match.start() - sql.rfind("\n", 0, match.start())
        name = match.lastgroup == "name"
        keyword = name and match[0].upper() in KEYWORDS
        kind = KINDS.get(match.lastgroup) or (match[0].upper() if keyword else "IDENTIFIER")
        words.append(Word(kind, match[0], line, column))
    return words


def in_spark(sql):
    words = cut(sql)
    return translated(sql, words, foreign(words, COLUMNS))


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("select k from a group by TUMBLE(ts, INTERVAL '10' MINUTE), k",
         "select k from a group by window(ts, '10 minutes'), k"),
        ("select tumble_start(a.ts, interval '1' day) as s", "select window(a.ts, '1 day').start as s"),
        ("select TUMBLE_END ( ts , INTERVAL 2 HOURS ), x", "select window(ts, '2 hours').end, x"),
        ("select TUMBLE_ROWTIME(ts, INTERVAL '5' SECOND) as t",
         "select (window(ts, '5 seconds').end - interval '0.001' second) as t"),
        ("group by HOP(ts, INTERVAL '5' SECOND, INTERVAL '1' MINUTE)", "group by window(ts, '1 minute', '5 seconds')"),
        ("HOP_START(ts, INTERVAL '5' SECOND, INTERVAL '1' MINUTE)", "window(ts, '1 minute', '5 seconds').start"),
        ("group by k, SESSION(ts, INTERVAL '10' SECOND)", "group by k, session_window(ts, '10 seconds')"),
        ("SESSION_END(\"ts\", INTERVAL '0.5' SECOND)", "session_window(`ts`, '0.5 seconds').end"),
        ("select 'é', TUMBLE_END(ts, -- till then\n INTERVAL '1' DAY)\n, v",
         "select 'é', window(ts, '1 day').end\n, v"),
    ],
)  # fmt: skip
def test_group_windows_are_translated(sql, wanted):
    assert in_spark(sql) == wanted


ROWS = ("(select *, {0}.start as window_start, {0}.end as window_end, {0}.end - interval '0.001' second as window_time "
        "from bid)")  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("from TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTE)) t", "window(ts, '10 minutes')"),
        ("from TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTE) t", "window(ts, '10 minutes')"),
        ("from TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '5' MINUTES, INTERVAL '1' HOUR)) t",
         "window(ts, '1 hour', '5 minutes')"),
        ("from table(hop(DATA => TABLE bid, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '1' HOUR,"
         " SLIDE => INTERVAL '5' MINUTES)) t", "window(ts, '1 hour', '5 minutes')"),
    ],
)  # fmt: skip
def test_table_windows_are_translated(sql, wanted):
    assert in_spark(sql) == f"from {ROWS.format(wanted)} t"


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("TUMBLE(ts, INTERVAL '1' MONTH)", "window(event_time, '10 minutes')"),
        ("TUMBLE(ts, INTERVAL '1:30' HOUR TO MINUTE)", "window(event_time, '10 minutes')"),
        ("TUMBLE(f(ts), INTERVAL '1' DAY)", "window(event_time, '10 minutes')"),
        ("HOP(ts, INTERVAL '1' DAY)", "window(event_time, '10 minutes')"),
        ("TUMBLE_PROCTIME(ts, INTERVAL '1' DAY)", "window(event_time, '10 minutes').end"),
        ("TABLE(SESSION(TABLE bid PARTITION BY bidder, x, DESCRIPTOR(ts), INTERVAL '1' DAY))", "group by "),
        ("TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(ts), INTERVAL '1' DAY))",
         "group by bidder, session_window(ts, '1 day')"),
        ("TABLE(CUMULATE(TABLE bid, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY))", "window(event_time, step)"),
        ("TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '1' DAY, INTERVAL '1' HOUR))", "window(event_time, "),
    ],
)  # fmt: skip
def test_what_has_no_translation_is_named_and_left_as_it_is(call, advice):
    sql = f"select {call} from bid"
    (phrase,) = foreign(cut(sql), COLUMNS)
    assert (phrase.code, phrase.exact, phrase.place) == (WINDOW, False, (1, 8))
    assert advice in phrase.replace
    assert in_spark(sql) == sql


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("from o join rates for system_time as of o.ts as r on o.k = r.k",
         "from o join rates as r on o.k = r.k and o.ts >= r.valid_from and o.ts < r.valid_to"),
        ("from o join rates for system_time as of o.ts r on o.k = r.k where r.x > 1 or o.y",
         "from o join rates r on o.k = r.k and o.ts >= r.valid_from and o.ts < r.valid_to where r.x > 1 or o.y"),
        ("(select * from o join r FOR SYSTEM_TIME AS OF ts on f(o.k, (1)) = r.k or (o.z)) z",
         "(select * from o join r on (f(o.k, (1)) = r.k or (o.z)) and ts >= r.valid_from and ts < r.valid_to) z"),
        ("from o left join r for system_time as of o.\"ts\" on left(o.k, 1) = r.\"from\" left join q on q.k = o.k",
         "from o left join r on left(o.k, 1) = r.`from` and o.`ts` >= r.valid_from and o.`ts` < r.valid_to "
         "left join q on q.k = o.k"),
    ],
)  # fmt: skip
def test_temporal_joins_are_translated(sql, wanted):
    assert in_spark(sql) == wanted
    assert any(phrase.code == TEMPORAL for phrase in foreign(cut(sql)))


@pytest.mark.parametrize(
    "sql",
    [
        "select * from r for system_time as of timestamp '2024-05-01'",
        "from o join r for system_time as of PROCTIME() on o.k = r.k",
        "from o join r for system_time as of o.ts using (k)",
        "from o join r for system_time as of",
        "from o join r for system_time as of o.ts on",
        "from o join r for system_time as of o.ts on where x",
    ],
)
def test_a_temporal_join_that_is_not_understood_is_named_with_the_form(sql):
    (phrase,) = foreign(cut(sql))
    assert (phrase.code, phrase.exact) == (TEMPORAL, False)
    assert phrase.replace == "a.event_time >= b.valid_from and a.event_time < b.valid_to"
    assert "temporalTables" in phrase.message
    assert in_spark(sql) == sql


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ('select a."x y" from "a" join "b`c" on "a".k = 1', "select a.`x y` from `a` join `b``c` on `a`.k = 1"),
        ('select v as "V", count(*) "c", v "d" from a', "select v as `V`, count(*) `c`, v `d` from a"),
    ],
)
def test_names_in_double_quotes_that_can_be_nothing_else(sql, wanted):
    phrases = foreign(cut(sql))
    assert {(phrase.code, phrase.certain) for phrase in phrases} == {(QUOTED, True)}
    assert in_spark(sql) == wanted


def test_a_text_called_like_a_column_may_be_meant_as_one():
    (phrase,) = foreign(cut('select event_time,\n "From" from a'), COLUMNS)
    assert (phrase.code, phrase.certain, phrase.replace, phrase.place) == (QUOTED, False, "`From`", (2, 2))
    assert "the text 'From'" in phrase.message


@pytest.mark.parametrize(
    "sql",
    [
        "select \"nothing\" as x, 'from' as y, `from`, x'1F' from a",
        'select date "v", interval "v" day, trim("nothing" from k), extract(day from "2024-05-01"), "v" \'w\' from a',
        "select hop, a.session, tumble.x, session_user(), `session`(1), a.hop(1) from a",
        'select "\\u0076", "" from a',
    ],
)
def test_what_is_sparks_own_is_left_alone(sql):
    assert foreign(cut(sql), COLUMNS) == []


def test_most_queries_need_no_words():
    assert not may_be_foreign("select event_time, window(event_time, '1 day') from a")
    assert not may_be_foreign("select system_time, shop(k), session_window(event_time, '1 day') from session")
    for sign in ('select "v"', "select HOP(x)", "FOR System_Time as of", "TUMBLE_start(", "from CUMULATE("):
        assert may_be_foreign(sign)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["TUMBLE(", "TABLE(HOP(TABLE a, ", 'a."v"', "j for system_time as of t on ", "SESSION(t)"]
)
def test_of_thousands_a_few_are_looked_at(part):
    looks = []

    class Counted(list):
        def __getitem__(self, at):
            looks.append(at)
            return super().__getitem__(at)

    phrases = foreign(Counted(cut(part * 2000)), COLUMNS)
    assert len(phrases) <= 2 * MAX_PHRASES
    assert len(looks) < 30 * MAX_PHRASES * MAX_SAID


@pytest.mark.slow
def test_of_a_long_one_nothing_is_said():
    assert foreign(cut(f'select a."{"x" * MAX_SAID}"')) == []
    long = " and ".join(["o.k = r.k"] * MAX_SAID)
    (phrase,) = foreign(cut(f"from o join r for system_time as of o.t r on {long}"))
    assert (phrase.exact, len(phrase.replace) < 100) == (False, True)


PIECES = ["TUMBLE", "HOP", "SESSION_END", "CUMULATE", "TABLE", "DESCRIPTOR", "(", ")", ",", ".", "=>", "INTERVAL", "a",
          "'1'", "MINUTE", "for", "system_time", "as", "of", "on", "join", "from", "select", '"v"', '"', "or", "left",
          "partition", "by", "\n", "1"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_any_words_at_all_have_an_answer_and_phrases_are_theirs(pieces):
    words = cut(" ".join(pieces))
    phrases = foreign(words, COLUMNS)
    assert [phrase.first for phrase in phrases] == sorted({phrase.first for phrase in phrases})
    for phrase in phrases:
        assert 0 <= phrase.first <= phrase.last < len(words)
        assert phrase.message
        assert phrase.replace
    translated(" ".join(pieces), words, phrases)
