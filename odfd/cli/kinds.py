"""Lists the kinds of things that commands know: their calls, their tables, and how names and labels select them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from chain.errors import Invalid, NotFound
from chain.instant import Instant
from odfd import output
from odfd.cli import formatting
from odfd.cli import resource_tables as tables
from odfd.cli.command import argument
from odfd.cli.session import NAMES, Session
from odfd.cli.table import WHOLE, TableColumn, clean, render
from odfd.control import calls, wire
from odfd.control.client import Answer, ApiCall, ControlClient
from odfd.errors import Usage
from odfd.resources import registry
from odfd.resources.registry import OWNER, STATE, VERSION, Registration

V = TypeVar("V", bound=wire.Value)
_STATE: Final = f"/resource/{VERSION}/{STATE}"
_PEER_ID: Final = "12D3KooW"
_PEER_ID_LENGTH: Final = 52
"""Characters of a whole peer id; a shorter text is the beginning of one."""
PAGE: Final = 5_000
"""Resources that are requested at a time: the most that the API returns."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    """A kind of resource: its names, its calls, and the columns of its table."""

    name: str
    aliases: tuple[str, ...]
    key: Callable[[V], str]
    """Returns the name of a resource in the API's paths."""
    columns: Callable[[Instant], tuple[TableColumn[V], ...]]
    """Returns the table's columns at the current time, as some show how long ago something was."""
    view_type: Callable[[], type[V]]
    """Returns ``view``, whose module is loaded then."""
    registration: Registration | None = None
    """The type of resources that it is, which are shown as their manifests."""
    fetch_all: Callable[[], ApiCall[list[V]]] | None = None
    """Makes the call for all things of a kind that is no type."""
    fetch: Callable[[str], ApiCall[V]] | None = None
    """Makes the call for one of them; ``None``: it is found among all."""
    delete: Callable[[str], ApiCall[V]] | None = None
    """``None``: they are not deleted."""

    @property
    def plural(self) -> str:
        """The name of several resources of the kind: its first alias, if it has any."""
        return self.aliases[0] if self.aliases else self.name

    @property
    def fields(self) -> tuple[type[wire.Value], ...]:
        """The types whose fields a condition names: of its state, and of a resource."""
        state = "" if self.registration is None else self.registration.state
        return (getattr(wire, state), self.view) if state else (self.view,)

    @property
    def view(self) -> type[V]:
        """The type of the API's answer for one resource."""
        return self.view_type()

    def all(self, session: Session) -> Answer[list[V]]:
        if self.fetch_all is not None:
            return session.client.do(self.fetch_all())
        return list_resources(session.client, self)  # type: ignore[return-value]  # the view is a manifest

    def show(self, session: Session, answer: Answer[V]) -> None:
        session.answer(answer, lambda row: self._table([row], session))

    def show_all(self, session: Session, answer: Answer[list[V]], none: str = "") -> None:
        """Shows all resources of the kind, or the text ``none``."""
        session.answer(answer, lambda rows: self._table(rows, session))
        if not answer.value and none:
            session.remark(none)

    def show_shaped(self, session: Session, answer: Answer[list[V]]) -> None:
        """Prints names alone, or a table with ids in which no cell is cut short."""
        if session.output == NAMES:
            prefix = "" if self.name == "resource" else f"{self.name}/"
            text = "\n".join(clean(f"{prefix}{self.key(row)}", WHOLE) for row in answer.value)
        else:
            ids = {id(row): id_of(sent) for row, sent in zip(answer.value, answer.sent, strict=True)}
            columns = tuple(column._replace(most=WHOLE) for column in self.columns(session.clock.now()))
            has_ids = any(ids.values()) and all(column.title != "ID" for column in columns)
            column = TableColumn[V]("ID", lambda row: ids[id(row)] or formatting.NOTHING, most=WHOLE)
            more = (column,) if has_ids else ()
            text = render((*columns, *more), answer.value)
        if text:
            output.say(text)

    def _table(self, rows: Sequence[V], session: Session) -> str:
        columns = self.columns(session.clock.now())
        owners = set() if self is ACCOUNT else {account_of(row) for row in rows}  # each account is its own
        if len(owners) > 1 or (owners - {OWNER} and owners != {own_account(session)}):
            columns = (columns[0], TableColumn[V]("ACCOUNT", account_of), *columns[1:])
        return render(columns, rows)


def account_of(row: wire.Value) -> str:
    """Returns the name of the account that has a resource."""
    if not isinstance(row, wire.ResourceManifest):
        return getattr(row, "account", None) or OWNER
    found = row.headers.get("account")
    return OWNER if found is None else str(found.get("name", found["id"]))


def own_account(session: Session) -> str:
    """Returns the name of the account that asks."""
    return session.client.do(calls.accounts_me()).value.name or OWNER


def with_state(sent: Any) -> Any:
    """Returns the JSON of a resource in which fields of its state stand beside its own."""
    conditions = sent.get("status", {}).get("conditions", {}) if isinstance(sent.get("status"), dict) else {}
    return {**next((each["value"] for key, each in conditions.items() if key.endswith(_STATE)), {}), **sent}


def whole_peer(session: Session, peer: str) -> str:
    """Returns the id of the known peer of a name, or whose id begins so. Raises NotFound, Invalid.

    A whole id or a key is returned as it is, since a peer may be blocked before it is met.
    """
    if peer.startswith("did:key:") or (peer.startswith(_PEER_ID) and len(peer) == _PEER_ID_LENGTH):
        return peer
    if peer.startswith("/"):
        hint = "odfctl peer connect ADDRESS; then name it by its id, the part after /p2p/"
        raise Invalid(f"{peer[:120]!r} is an address, and a peer is named by its id", rule="peer", hint=hint)
    rows = PEER.all(session).value
    found = [row.spec["peerId"] for row in rows if row.name == peer or row.spec["peerId"].startswith(peer)]
    if len(found) > 1:
        raise Invalid(f"several peers begin with {peer!r}", rule="peer", hint="write more of it")
    if not found:
        raise NotFound(f"no peer {peer[:60]!r} is known here", rule="peer", hint="odfctl peer list")
    return str(found[0])


def id_of(sent: Any) -> str:
    """Returns the id of a resource from its JSON."""
    return str(sent.get("id") or sent.get("headers", {}).get("id") or "")


def list_resources(
    client: ControlClient,
    kind: Kind[Any],
    *,
    labels: str | None = None,
    name: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Answer[list[wire.ResourceManifest]]:
    """Returns the resources of a type, from all pages. ``labels`` and ``name`` select some.

    ``tell`` is called with a text about each deleted one whose effects are not undone yet.
    """
    assert kind.registration is not None
    values: list[wire.ResourceManifest] = []
    sent: list[Any] = []
    rest: str | None = None
    while True:
        call = calls.resources_all(kind.registration, labels=labels, name=name, limit=PAGE, continue_=rest)
        page = client.do(call)
        values += page.value.items
        for gone in page.value.deleting:
            if tell is not None:
                why = gone.deletion
                tell(
                    f"{kind.name} {gone.name} is deleted, and not undone yet: {why.get('message')} ({why.get('code')})"
                )
        sent += page.sent["items"]
        rest = page.value.rest
        if rest is None and kind is TASK:  # in the order in which they began
            order = sorted(range(len(values)), key=lambda at: str(values[at].headers["createdAt"]))
            return Answer([values[at] for at in order], [sent[at] for at in order])
        if rest is None:
            return Answer(values, sent)


def dataset_view(client: ControlClient, ref: str) -> wire.DatasetView:
    """Returns the state of a dataset, or of a chain inside it. Raises NotFound."""
    return client.do(calls.datasets_describe(ref)).value.dataset


def _renditions(_now: Instant) -> tuple[TableColumn[wire.RenditionView], ...]:
    return (
        TableColumn("NAME", lambda row: row.dataset or formatting.NOTHING),
        TableColumn("N", lambda row: str(row.number), right=True),
        TableColumn("SHARDS", lambda row: str(len(row.shards) or 1), right=True),
        TableColumn("STATE", lambda row: row.state),
        TableColumn("FROM", lambda row: row.origin),
        TableColumn("ACTIVE SINCE", lambda row: row.active_since or formatting.NOTHING),
        TableColumn("COMPLETE BEFORE", lambda row: row.upper or formatting.NOTHING),
        TableColumn("DECIDED BEFORE", lambda row: row.until or formatting.NOTHING),
    )


def _unmanaged_columns(now: Instant) -> tuple[TableColumn[wire.UnmanagedView], ...]:
    return (
        TableColumn("NAME", lambda row: row.name or formatting.NOTHING),
        TableColumn("BLOCKS", lambda row: formatting.count(row.blocks), right=True),
        TableColumn("SIZE", lambda row: formatting.size(row.bytes), right=True),
        TableColumn("OWNER", lambda row: "yes" if row.owner else "no"),
        TableColumn("DELETED", lambda row: formatting.ago(row.deleted_at, now)),
        TableColumn("DID", lambda row: row.id, most=WHOLE),
    )


def _name(row: wire.ResourceManifest) -> str:
    return row.name


def _make_kind(names: Registration) -> Kind[wire.ResourceManifest]:
    """Makes a kind whose resources are shown as their manifests."""
    return Kind(
        names.name.lower(),
        (names.plural, *names.aliases),
        _name,
        partial(tables.columns, names),
        lambda: wire.ResourceManifest,
        names,
        fetch=partial(calls.resources_one, names),
        delete=partial(calls.resources_delete, names),
    )


DATASET: Final = _make_kind(registry.DATASET)
FLOW: Final = _make_kind(registry.FLOW)
MIRROR: Final = _make_kind(registry.MIRROR)
ENGINE: Final = _make_kind(registry.ENGINE)
NETWORK: Final = _make_kind(registry.NETWORK)
PEER: Final = _make_kind(registry.PEER)
VALIDATOR: Final = _make_kind(registry.VALIDATOR)
TASK: Final = _make_kind(registry.TASK)
REPOSITORY: Final = _make_kind(registry.REPOSITORY)
ACCOUNT: Final = _make_kind(registry.ACCOUNT)
NODE: Final = _make_kind(registry.NODE)
_OWN: Final = (DATASET, FLOW, MIRROR, ENGINE, NETWORK, PEER, VALIDATOR, TASK, REPOSITORY, ACCOUNT, NODE)
"""Kinds that commands name."""
RENDITION: Final = Kind(
    "rendition", ("renditions",), lambda row: row.dataset, _renditions, lambda: wire.RenditionView,
    fetch_all=calls.renditions_list_all,
)  # fmt: skip
UNMANAGED: Final = Kind(
    "unmanaged", (), lambda row: row.id, _unmanaged_columns, lambda: wire.UnmanagedView,
    fetch_all=calls.unmanaged_list, fetch=calls.unmanaged_get, delete=calls.unmanaged_delete,
)  # fmt: skip
RESOURCE: Final = Kind(
    "resource", ("resources", "all"), lambda row: f"{row.type}/{row.name}", tables.resources,
    lambda: wire.ResourceManifest, fetch_all=calls.resources_of_all_types,
)  # fmt: skip
"""Resources of all types; a name has its type before it: ``Flow/hourly``."""
_BY_NAME: Final[Mapping[str, Kind[Any]]] = {each.name: each for each in _OWN}
_TYPES: Final = tuple(_BY_NAME.get(each.name.lower()) or _make_kind(each) for each in registry.ALL)
KINDS: Final[tuple[Kind[Any], ...]] = (*_TYPES, RENDITION, UNMANAGED, RESOURCE)
LIVE: Final = (ENGINE, NODE)
"""Kinds that the node itself makes: they can be watched, and have no manifest to apply and no labels."""
DECLARED: Final = tuple(each for each in _TYPES if each not in LIVE)
"""Kinds that have labels, and can be watched."""


def parse_names(word: str, names: Iterable[str]) -> tuple[Kind[Any], list[str]]:
    """Returns a kind and the names: ``KIND NAME…``, ``KIND/NAME``, or ``KIND/NAME KIND/NAME…`` as ``-o name`` prints.

    An id of a dataset says its kind: ``did:odf:…``. Raises Usage.
    """
    if word.startswith("did:odf:"):
        return DATASET, [word, *names]
    of, slash, first = word.partition("/")
    kind = find(of)
    given = [first, *names] if slash and first else list(names)
    if kind is RESOURCE:
        return kind, given
    return kind, [_plain(kind, each) for each in given]


def _plain(kind: Kind[Any], name: str) -> str:
    """Drops the kind before a name, which may have its account before it. Raises Usage for another kind."""
    of, slash, plain = name.partition("/")
    if slash and of.lower() in (kind.name, *kind.aliases):
        return plain
    if name.count("/") > 1 or (slash and any(of.lower() in (each.name, *each.aliases) for each in KINDS)):
        raise Usage(f"{name[:100]!r} names no {kind.name}", hint=f"odfctl get {kind.plural} -o name lists them")
    return name


def find(word: str) -> Kind[Any]:
    """Returns a kind by name or alias, ignoring case. Raises Usage."""
    low = word.lower()
    for kind in KINDS:
        if low == kind.name or low in kind.aliases:
            return kind

    import difflib

    names = [kind.name for kind in KINDS]
    near = difflib.get_close_matches(low, names, n=1, cutoff=0.7)
    guess = f"did you mean {near[0]}?" if near else f"if it is a dataset's name, write: dataset {word[:100]}"
    raise Usage(f"there is no kind {word[:100]!r}", hint=f"{guess}  kinds are {', '.join(names)}")


OR_PATTERN: Final = "or a pattern: %% for any text, _ for a character"
BY_LABELS: Final = argument(
    "-l", "--labels", metavar="SELECTOR", help="select by labels: 'env=prod,team in (a,b),!old'"
)


def check_declared(kind: Kind[Any], text: str) -> None:
    if kind not in (*DECLARED, RESOURCE):
        known = ", ".join(each.name for each in DECLARED)
        raise Usage(f"{kind.plural} {text}", hint=f"these are: {known}")


def is_pattern(kind: Kind[Any], name: str) -> bool:
    """Whether a text selects by names: it has a wildcard, which no name of a resource has."""
    return "%" in name or ("_" in name and kind in (*DECLARED, RESOURCE))


def meant_by(session: Session, kind: Kind[Any], names: Sequence[str]) -> list[str] | None:
    """Returns names with each pattern replaced by what it selects; ``None`` if there were some, and nothing is left.

    Raises Usage for a kind whose things are not selected.
    """
    found: list[str] = []
    for each in names:
        if is_pattern(kind, each):
            check_declared(kind, "are not selected by patterns")
            meant = names_of(kind, list_selected(session, kind, name=each).value)
            found += [name for name in meant if name not in found]
        else:
            found.append(each)
    return found if found or not names else None


def names_of(kind: Kind[Any], rows: Sequence[Any]) -> list[str]:
    """Returns the names of resources, each of which means one: the id of one whose name several accounts have."""
    names = [kind.key(row) for row in rows]
    return [row.id if names.count(name) > 1 else name for row, name in zip(rows, names, strict=True)]


def datasets_meant(session: Session, refs: Sequence[str]) -> tuple[str, ...]:
    """Returns names of datasets with each pattern replaced by what it selects. Raises NotFound if that is nothing."""
    return things_meant(session, DATASET, refs)


def things_meant(session: Session, kind: Kind[Any], refs: Sequence[str]) -> tuple[str, ...]:
    """Returns names with each pattern replaced by what it selects. Raises NotFound if that is nothing."""
    found: dict[str, None] = {}
    for each in refs:
        # One in a repository is not listed here.
        meant = [each] if "/" in each else meant_by(session, kind, [each])
        if meant is None:
            hint = f"odfctl get {kind.plural} lists them"
            raise NotFound(f"no {kind.name} has a name like {each!r}", rule="resource", hint=hint)
        found |= dict.fromkeys(meant)
    return tuple(found)


def check_one(kind: Kind[Any], name: str, command: str) -> None:
    """Raises Usage for a pattern where a command takes one name."""
    if is_pattern(kind, name):
        hint = f"name one: odfctl get {kind.plural} '{name[:100]}' -o name lists them"
        raise Usage(f"{command} takes the name of one {kind.name}, and {name[:100]!r} is a pattern", hint=hint)


def list_labelled(session: Session, kind: Kind[V], labels: str) -> Answer[list[V]]:
    """Returns the resources of a kind that ``labels`` selects."""
    return list_selected(session, kind, labels=labels)


def list_selected(
    session: Session, kind: Kind[V], *, labels: str | None = None, name: str | None = None
) -> Answer[list[V]]:
    """Returns the resources of a kind that have such labels, or such a name."""
    if kind is RESOURCE:
        found = session.client.do(calls.resources_of_all_types(name=name, labels=labels))
    else:
        found = list_resources(session.client, kind, labels=labels, name=name)
    return found  # type: ignore[return-value]  # the view is a manifest


def one_or_several(answers: Sequence[Answer[V]]) -> Answer[Any]:
    """Returns the answer about one thing as it is, and those about several as a list."""
    return answers[0] if len(answers) == 1 else several(answers)


def several(answers: Sequence[Answer[V]]) -> Answer[list[V]]:
    return Answer([answer.value for answer in answers], [answer.sent for answer in answers])
