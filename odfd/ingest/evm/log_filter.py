"""Parses the filter of a source of logs: conditions joined by ``and``, each of which a node can evaluate. Pure.

kamu takes any SQL condition there. Conditions that a node cannot evaluate are refused: they belong to ``preprocess``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from chain.errors import Invalid
from odfd.ingest.evm.signature import parse_event, selector

RULE: Final = "evm-filter"
MAX_BLOCK: Final = (1 << 63) - 1
_MAX_ADDRESSES: Final = 1_000
_HEX: Final = r"(?:[Xx]'([0-9a-fA-F]+)')"
# An "and" within a text counts as text: an even number of quotes follows a separator.
_AND: Final = re.compile(r"\s+and\s+(?=(?:[^']*'[^']*')*[^']*\Z)", re.IGNORECASE)
_BLOCK: Final = re.compile(r"block_number\s*(>=|<=|=|>|<)\s*(\d{1,18})\Z", re.IGNORECASE)
_ADDRESS: Final = re.compile(rf"address\s*(?:=\s*{_HEX}|in\s*\(([^()]*)\))\Z", re.IGNORECASE)
_TOPIC: Final = re.compile(rf"topic([0-3])\s*=\s*(?:{_HEX}|eth_event_selector\s*\(\s*'([^']*)'\s*\))\Z", re.IGNORECASE)
_ADDRESS_DIGITS: Final = 40
_TOPIC_DIGITS: Final = 64


class LogFilter(NamedTuple):
    """The logs that are requested from a node."""

    first: int = 0
    last: int = MAX_BLOCK
    addresses: tuple[str, ...] = ()
    """Addresses of contracts; empty: logs of all contracts."""
    topics: tuple[str | None, ...] = (None, None, None, None)

    def parameter_for(self, first: int, last: int) -> dict[str, object]:
        """Returns the parameter of ``eth_getLogs`` for a range of blocks, both ends included."""
        topics = list(self.topics)
        while topics and topics[-1] is None:
            topics.pop()
        found: dict[str, object] = {"fromBlock": hex(first), "toBlock": hex(last)}
        if self.addresses:
            found["address"] = list(self.addresses)
        return found | ({"topics": topics} if topics else {})

    def fits(self, address: str, topics: tuple[str, ...]) -> bool:
        """Whether a log has one of the addresses and all topics of the filter."""
        wanted = [(number, each) for number, each in enumerate(self.topics) if each is not None]
        return (not self.addresses or address in self.addresses) and all(
            number < len(topics) and topics[number] == each for number, each in wanted
        )


def parse_filter(text: str | None) -> LogFilter:
    """Parses a filter. Raises Invalid."""
    found = LogFilter()
    for term in _AND.split(text.strip()) if text and text.strip() else []:
        found = _narrow(found, term.strip())
    if found.first > found.last:
        raise Invalid("no block fits the filter", rule=RULE, hint="look at its conditions on block_number")
    return found


def with_topic(found: LogFilter, topic: str, at: int = 0) -> LogFilter:
    """Narrows a filter to a topic at position ``at``. Raises Invalid if it requires another value there."""
    if found.topics[at] not in (None, topic):
        raise Invalid(f"the filter asks for two values of topic{at}", rule=RULE, hint="one of them is enough")
    return found._replace(topics=(*found.topics[:at], topic, *found.topics[at + 1 :]))


def _narrow(found: LogFilter, term: str) -> LogFilter:
    if said := _BLOCK.match(term):
        sign, number = said[1], int(said[2])
        first = number + (sign == ">") if sign in (">", ">=", "=") else 0
        last = number - (sign == "<") if sign in ("<", "<=", "=") else MAX_BLOCK
        return found._replace(first=max(found.first, first), last=min(found.last, last))
    if said := _ADDRESS.match(term):
        if found.addresses:
            raise Invalid("the filter names address twice", rule=RULE, hint="write address in (X'…', X'…')")
        listed = [said[1]] if said[1] else [_digits(each) for each in said[2].split(",")]
        if len(listed) > _MAX_ADDRESSES:
            raise Invalid(f"the filter names more than {_MAX_ADDRESSES:,} addresses", rule=RULE)
        return found._replace(addresses=tuple(_value(each, _ADDRESS_DIGITS, term) for each in listed))
    if said := _TOPIC.match(term):
        value = selector(parse_event(said[3])) if said[2] is None else _value(said[2], _TOPIC_DIGITS, term)
        return with_topic(found, value, int(said[1]))
    raise Invalid(
        f"a node cannot be asked for {term[:200]!r}",
        rule=RULE,
        hint="conditions joined by and: address = X'…', address in (X'…', …), topic0 = X'…', "
        "topic0 = eth_event_selector('…'), block_number > N; others belong to preprocess",
    )


def _digits(text: str) -> str:
    found = re.fullmatch(_HEX, text.strip())
    return "" if found is None else found[1]


def _value(digits: str, length: int, term: str) -> str:
    if len(digits) != length:
        raise Invalid(f"{term[:200]!r} needs {length} hexadecimal digits: X'…'", rule=RULE, hint="odfctl docs sources")
    return "0x" + digits.lower()
