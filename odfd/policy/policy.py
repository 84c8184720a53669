"""Defines the policy of a node: which facts must hold before data is used or passed on (docs/spec/trust.md#policy).

A purpose is an expression of facts with ``&``, ``|`` and brackets: ``data & (reproduced | attested:2)``. Facts have no
order of strength. Every mistake of a policy is reported at once. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeAlias, TypeVar

import msgspec

from chain.errors import Fault, Invalid
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import canonical
from chain.store.base import FormerEpochs
from chain.wording import agree, plural
from config import model
from odfd.policy.witness_quorum import (
    PublicWitness,
    Witnesses,
    load_witnesses,
    read_witness,
    seconds_of,
    weaknesses,
)
from odfd.resources.selectors import Facts, means

PLAIN_FACTS: Final = ("linked", "chain", "data", "reproduced", "fresh")
COUNTED_FACTS: Final = ("attested", "observed", "witnessed")
SANDBOXES: Final = ("none", "host", "image", "container")
"""Levels of isolation, the weakest first."""
MAX_DEPTH: Final = 16
"""Nesting depth of brackets."""


class Fact(msgspec.Struct, frozen=True):
    """A fact in an expression: ``name`` or ``name:count``."""

    name: str
    count: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.count}" if self.count else self.name


class AllOf(msgspec.Struct, frozen=True):
    terms: tuple[Expression, ...]

    def __str__(self) -> str:
        return " & ".join(f"({term})" if isinstance(term, AnyOf) else str(term) for term in self.terms)


class AnyOf(msgspec.Struct, frozen=True):
    terms: tuple[Expression, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.terms))


Expression: TypeAlias = Fact | AllOf | AnyOf


def facts_of(expression: Expression) -> Iterator[Fact]:
    if isinstance(expression, Fact):
        yield expression
    else:
        for term in expression.terms:
            yield from facts_of(term)


def holds(expression: Expression, facts: Mapping[str, int]) -> bool:
    """Whether an expression holds; ``facts`` has 1 or 0 for plain facts and the count for counted ones."""
    if isinstance(expression, Fact):
        return facts.get(expression.name, 0) >= max(expression.count, 1)
    results = (holds(term, facts) for term in expression.terms)
    return all(results) if isinstance(expression, AllOf) else any(results)


_TOKEN: Final = re.compile(r"\s*(?:([a-z]+)(?::(\d{1,3}))?|([&|()]))", re.ASCII)


def parse_expression(text: str) -> Expression:
    """Parses an expression. Raises Invalid, pointing at the place."""
    parser = _Parser(text)
    expression = parser.any_of(0)
    if parser.at < len(parser.tokens):
        raise parser.fault(f"unexpected {parser.tokens[parser.at][0]!r}")
    return expression


class _Parser:
    """Parses the tokens of one expression by recursive descent."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens: list[tuple[str, str, int]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            match = _TOKEN.match(text, place)
            if match is None:
                raise self.fault(f"cannot read {text[place : place + 10]!r}")
            self.tokens.append((match[1] or match[3], match[2] or "", place))
            place = match.end()

    def fault(self, message: str) -> Fault:
        facts = ", ".join(PLAIN_FACTS) + ", " + ", ".join(f"{name}:K" for name in COUNTED_FACTS)
        return Invalid(
            f"policy {self.text!r}: {message}", rule="policy-expression", hint=f"facts: {facts}; joined by & | ( )"
        )

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def any_of(self, depth: int) -> Expression:
        terms = [self.all_of(depth)]
        while self.peek() == "|":
            self.at += 1
            terms.append(self.all_of(depth))
        return terms[0] if len(terms) == 1 else AnyOf(tuple(terms))

    def all_of(self, depth: int) -> Expression:
        terms = [self.term(depth)]
        while self.peek() == "&":
            self.at += 1
            terms.append(self.term(depth))
        return terms[0] if len(terms) == 1 else AllOf(tuple(terms))

    def term(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise self.fault("too many brackets")
        if self.at >= len(self.tokens):
            raise self.fault("ends where a fact was expected")
        word, count, _ = self.tokens[self.at]
        self.at += 1
        if word == "(":
            inner = self.any_of(depth + 1)
            if self.peek() != ")":
                raise self.fault("a bracket is not closed")
            self.at += 1
            return inner
        if word in COUNTED_FACTS:
            if not count or int(count) == 0:
                raise self.fault(f"{word} needs a number, like {word}:2")
            return Fact(word, int(count))
        if word not in PLAIN_FACTS or count:
            raise self.fault(f"{word!r} is not a fact" if word not in PLAIN_FACTS else f"{word} takes no number")
        return Fact(word)


class KeyGroup(msgspec.Struct, frozen=True):
    """Keys of one operator, as judged by the node's owner; together they have one vote."""

    name: str
    keys: frozenset[KeyDid]


class DatasetRule(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements for some datasets, in place of those for all. A TrustPolicy declares them."""

    name: str
    datasets: tuple[str, ...]
    """What it is for, as ``odfd.resources.selectors.Targets``."""
    use: Expression | None = None
    serve: Expression | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The policy of this node: what it requires before it uses or serves data, and whose statements count."""

    use: Expression = Fact("data")
    serve: Expression = Fact("chain")
    groups: tuple[KeyGroup, ...] = ()
    tolerated: int = 0
    """f: how many groups, me included, may be wrong at once."""
    max_stale: int = 14 * 86400
    """Seconds past a head's expiry during which it still counts as fresh."""
    attest: bool = False
    observe: bool = False
    spot_check: float = 0.0
    """Share of steps that this node re-runs even if it does not attest."""
    recheck: bool = True
    """Whether evidence that listed validators name is fetched and re-checked without a person's request."""
    floors: tuple[Expression | None, Expression | None] = (None, None)
    """For use and serve: what a network requires of each dataset, whatever a person set for that dataset."""
    rules: tuple[DatasetRule, ...] = ()
    """Rules for some datasets; the first that matches decides. A mirror's own terms take precedence."""
    witnesses: Witnesses = Witnesses()
    public: tuple[PublicWitness, ...] = ()
    """Public witnesses that are asked to cosign what this node publishes."""
    attended: frozenset[DatasetId] = frozenset()
    """Datasets of others that this node cosigns, even if it does not mirror them."""
    min_engines: int = 1
    """Number of different engine digests that must be behind ``attested:K``."""
    min_sandbox: str = "none"
    """Weakest isolation under which a verdict of others counts."""
    notes: tuple[str, ...] = ()
    """Guarantees that these rules cannot give, for people."""

    @property
    def digest(self) -> Multihash:
        """Returns a hash that names these rules in decisions that rest on them."""
        content: dict[str, canonical.Json] = {
            "use": str(self.use),
            "serve": str(self.serve),
            "f": self.tolerated,
            "groups": {group.name: [str(key) for key in sorted(group.keys)] for group in self.groups},
            "maxStale": self.max_stale,
            "witnesses": {name: str(key) for key, name in self.witnesses.groups.items()},
            "witness": [self.witnesses.faulty, self.witnesses.quorum, self.witnesses.max_age],
            "engines": [self.min_engines, self.min_sandbox],
        }
        if self.rules:
            content["rules"] = [[rule.name, *rule.datasets, f"{rule.use}", f"{rule.serve}"] for rule in self.rules]
        return Multihash.sha3_256(canonical.encode(content))

    @property
    def witnesses_asked(self) -> int:
        """Returns the most witness groups that any rule here requires, for datasets met for the first time or later."""
        expressions: list[Expression] = [self.use, self.serve, *(floor for floor in self.floors if floor is not None)]
        expressions += [said for rule in self.rules for said in (rule.use, rule.serve) if said is not None]
        counts = [fact.count for expression in expressions for fact in facts_of(expression) if fact.name == "witnessed"]
        return max([self.witnesses.quorum, *counts])

    def use_of(self, own: Expression | None) -> Expression:
        """Returns what must hold before a dataset is used, given a person's own setting for it, if any."""
        return _above(self.floors[0], own) or self.use

    def serve_of(self, own: Expression | None) -> Expression:
        return _above(self.floors[1], own) or self.serve

    def ruled(self, name: str, facts: Callable[[], Facts]) -> tuple[Expression | None, Expression | None]:
        """Returns the requirements for use and serve that rules have for a dataset;
        ``None`` where they have none."""
        meant = [rule for rule in self.rules if means(rule.datasets, name, facts)]
        use = next((each.use for each in meant if each.use is not None), None)
        return use, next((each.serve for each in meant if each.serve is not None), None)

    def group_of(self, key: KeyDid) -> str | None:
        return self._groups_of_keys.get(key)

    @cached_property
    def _groups_of_keys(self) -> Mapping[KeyDid, str]:
        return {key: group.name for group in self.groups for key in group.keys}


def _above(floor: Expression | None, own: Expression | None) -> Expression | None:
    return own if floor is None or own is None else AllOf((own, floor))


Read = TypeVar("Read")


class PolicyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a policy except its expressions and validators, as written."""

    witness: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Groups of witnesses with their keys."""
    witness_faulty: int = 0
    quorum: int = 0
    max_age: str = "7d"
    max_stale: str = "14d"
    min_engines: int = 1
    min_sandbox: str = "none"
    attest: bool = False
    observe: bool = False
    spot_check: float = 0.0
    recheck: bool = True
    public: tuple[str, ...] = ()
    """Public witnesses to ask over HTTP: a key and a URL."""
    attended: tuple[str, ...] = ()
    """Datasets to cosign without mirroring them."""


def load_policy(
    *,
    use: str,
    serve: str,
    groups: Sequence[tuple[str, Sequence[str]]] = (),
    tolerated: int = 0,
    terms: PolicyTerms = PolicyTerms(),  # noqa: B008  it is frozen
) -> Policy:
    """Makes a policy from its written form. Raises Invalid with every mistake in one message."""
    witnesses, mistakes = load_witnesses(
        terms.witness, faulty=terms.witness_faulty, quorum=terms.quorum, max_age=terms.max_age
    )
    expressions: dict[str, Expression] = {}
    for name, text in (("use", use), ("serve", serve)):
        try:
            expressions[name] = parse_expression(text)
        except Invalid as fault:
            mistakes.append(f"{name}: {fault.message}")
    listed: list[KeyGroup] = []
    seen: dict[KeyDid, str] = {}
    names: set[str] = set()
    for name, keys in groups:
        members: set[KeyDid] = set()
        for text in keys:
            try:
                key = KeyDid.parse(text)
            except Invalid as fault:
                mistakes.append(f"group {name}: {fault.message}")
                continue
            if key in seen:
                mistakes.append(f"group {name}: key {key.short} is in group {seen[key]} too; a key has one vote")
            seen[key] = name
            members.add(key)
        if name in names:
            mistakes.append(f"group {name} is listed twice")
        names.add(name)
        listed.append(KeyGroup(name, frozenset(members)))
    mistakes += quorum_mistakes(expressions, len(listed), tolerated)
    mistakes += _other_mistakes(expressions, terms, len(listed))
    attended: list[DatasetId] = []
    public: list[PublicWitness] = []
    mistakes += _all_read("publish.witness", DatasetId.parse, terms.attended, attended)
    mistakes += _all_read("witness.public", read_witness, terms.public, public)
    if mistakes:
        raise Invalid("; ".join(mistakes), rule="policy", hint="odfctl docs spec/trust says what a policy may say")
    asked = [(name, fact.count) for name, each in expressions.items() for fact in facts_of(each)
             if fact.name == "witnessed"]  # fmt: skip
    return Policy(
        use=expressions["use"],
        serve=expressions["serve"],
        groups=tuple(listed),
        tolerated=tolerated,
        attest=terms.attest,
        observe=terms.observe,
        spot_check=terms.spot_check,
        recheck=terms.recheck,
        max_stale=seconds_of(terms.max_stale),
        witnesses=witnesses,
        public=tuple(public),
        attended=frozenset(attended),
        min_engines=terms.min_engines,
        min_sandbox=terms.min_sandbox,
        notes=tuple(weaknesses(witnesses, [("witness.quorum", witnesses.quorum), *asked])),
    )


def _all_read(name: str, read: Callable[[str], Read], texts: Sequence[str], into: list[Read]) -> Iterator[str]:
    for text in texts:
        try:
            into.append(read(text))
        except Invalid as fault:
            yield f"{name}: {fault.message}"


def _other_mistakes(expressions: Mapping[str, Expression], terms: PolicyTerms, groups: int) -> Iterator[str]:
    for purpose, expression in expressions.items():
        for fact in facts_of(expression):
            if fact.name == "witnessed" and not terms.witness:
                yield f"{purpose}: {fact} without any witness groups"
            elif fact.name == "witnessed" and fact.count > len(terms.witness):
                listed = agree(len(terms.witness), "group is", "groups are")
                yield f"{purpose}: {fact}, of which {len(terms.witness)} {listed} listed"
    if terms.min_engines > max(groups, 1):
        yield f"{terms.min_engines} engines among {plural(groups, 'group')}"
    if terms.min_sandbox not in SANDBOXES:
        yield f"min-sandbox {terms.min_sandbox!r} is none of {', '.join(SANDBOXES)}"
    try:
        seconds_of(terms.max_stale)
    except Invalid as fault:
        yield f"max-stale: {fault.message}"


def quorum_mistakes(expressions: Mapping[str, Expression], groups: int, tolerated: int) -> Iterator[str]:
    """Yields a mistake for each attested:K and observed:K of a policy without f+1 <= K <= n-f."""
    for purpose, expression in expressions.items():
        for fact in facts_of(expression):
            if fact.name not in ("attested", "observed"):
                continue
            if groups == 0:
                yield f"{purpose}: {fact} without any validator groups"
            elif not tolerated + 1 <= fact.count <= groups - tolerated:
                bounds = f"{tolerated + 1}…{groups - tolerated}"
                yield f"{purpose}: {fact} must lie in {bounds} with {plural(groups, 'group')} and f = {tolerated}"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    use: str
    use_counted: str | None = None
    """Replaces ``use`` if the listed groups can meet it: K of ``attested:K`` needs f+1 <= K <= n-f."""
    serve: str
    min_sandbox: str = "none"
    """Weakest isolation under which a verdict of others counts."""
    attest: bool
    max_stale: str
    cosign: bool = False
    spot_check: float = 0.0
    follow: str = "ask"
    """Whether an epoch that gives up published blocks is followed."""
    keep_epochs: int | None = 1
    """Number of epochs whose blocks are kept, the present one included; ``None``: all."""


PROFILES: Final = {
    "laptop": Profile(use="data", serve="chain", attest=False, max_stale="14d"),
    "mirror": Profile(
        use="data", serve="data", attest=False, max_stale="30d", follow="follow", cosign=True, spot_check=0.01
    ),
    "validator": Profile(
        use="data & reproduced",
        use_counted="data & (reproduced | attested:2)",
        serve="data",
        min_sandbox="image",
        attest=True,
        max_stale="14d",
        cosign=True,
        keep_epochs=2,
    ),
    "archive": Profile(
        use="data", serve="chain", attest=False, max_stale="never", follow="follow", cosign=True, keep_epochs=None
    ),
}
"""The profiles by name. Data that this node derives meets ``reproduced`` (``ChainExtent.own``), but never
``attested``."""


def policy_of(settings: model.Policy, added: Sequence[tuple[str, str]] = ()) -> Policy:
    """Returns the policy in force; ``added``: (key, group) listed by a person. Raises Invalid with every mistake."""
    profile = PROFILES[settings.profile]
    groups: dict[str, list[str]] = {group.name: list(group.keys) for group in settings.validators.groups}
    for key, group in added:
        members = groups.setdefault(group, [])
        if key not in members:
            members.append(key)
    return load_policy(
        use=settings.use or _use(profile, len(groups), settings.validators.f),
        serve=settings.serve or profile.serve,
        groups=list(groups.items()),
        tolerated=settings.validators.f,
        terms=_terms(settings, profile),
    )


def _use(profile: Profile, groups: int, tolerated: int) -> str:
    if profile.use_counted is None:
        return profile.use
    wanted = {"use": parse_expression(profile.use_counted)}
    return profile.use if any(quorum_mistakes(wanted, groups, tolerated)) else profile.use_counted


def _terms(settings: model.Policy, profile: Profile) -> PolicyTerms:
    validators = settings.validators
    return PolicyTerms(
        witness=tuple((group.name, group.keys) for group in settings.witness.groups),
        witness_faulty=settings.witness.f,
        quorum=settings.witness.quorum,
        max_age=settings.witness.max_age,
        max_stale=settings.fresh.max_stale or profile.max_stale,
        min_engines=validators.min_engines,
        min_sandbox=validators.min_sandbox or profile.min_sandbox,
        attest=profile.attest if settings.publish.attest is None else settings.publish.attest,
        observe=settings.publish.observe,
        spot_check=profile.spot_check if validators.spot_check is None else validators.spot_check,
        recheck=validators.recheck,
        attended=settings.publish.witness,
        public=settings.witness.public,
    )


def cosigns(settings: model.Policy) -> bool:
    """Whether this node cosigns the datasets that it mirrors."""
    configured = settings.publish.cosign
    return PROFILES[settings.profile].cosign if configured is None else configured


def follows_rewrites(settings: model.Policy) -> bool:
    """Whether mirrors follow an epoch that gives up published blocks, or wait for a person's decision."""
    return (settings.rewrite.follow or PROFILES[settings.profile].follow) == "follow"


def apart(settings: model.Policy, epoch: int) -> FormerEpochs:
    """Returns in which epoch blocks are given up, and how many former epochs are kept with their blocks."""
    configured = settings.rewrite.keep_epochs
    most = PROFILES[settings.profile].keep_epochs if configured is None else configured
    return FormerEpochs(epoch, None if most is None else most - 1)
