"""Decides what one caller may do: hides what it may not read, and refuses what it may not do, with the remedy.

Accounts get positions in the log of resources that reveal nothing about changes made by others. A log number counts the
changes of all accounts. An account therefore gets the number of the last change that it can read, encrypted: it does
not move when others change something, and only the node knows its order and its distance to others. The key belongs to
the node, so positions survive a restart. Each position carries a second encrypted number: when the account's rights
last changed, by which the log shows what the account could read then.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from cachetools import LRUCache
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from odfd.access.relations import Action, Deny, Principal, Relations, Role, Thing, authorize
from odfd.control import wire
from odfd.resources.store import ResourceStore
from odfd.store.access_state import AccessReader, AccessState
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory

KEY_BYTES: Final = 64
MOST: Final = 1_000
"""Accounts whose readable resources are cached; an account that drops out lists anew."""


class Sight(NamedTuple):
    """The resources that one account can read, at one state of access."""

    state: AccessState
    published: int
    readable: Collection[str]
    """Ids of the resources."""
    position: int
    """The log number of the last change that the account can read; the newest at first. Never below the log's floor."""
    rights_at: int
    """The log number of the first look, or of the last change of the account's rights on existing resources."""


class SealedPositions:
    """Caches what accounts can read, and encrypts their positions. Used from worker threads."""

    def __init__(self, home: StateDirectory, key: bytes) -> None:
        """``key``: ``KEY_BYTES`` bytes, for the log that the node has now."""
        self._home = home
        # No nonce: clients compare the texts for equality, so one position must have one text.
        self._cipher = AESSIV(key)
        self._lock = threading.Lock()
        self._sights: LRUCache[str, Sight] = LRUCache(MOST)

    def look(
        self, account: str | None, state: AccessState, published: int, handles: Callable[[AccessState], Collection[str]]
    ) -> Sight:
        """Returns what an account can read now. ``handles`` returns the ids that it can read at a state."""
        name = account or ""
        with self._lock:
            held = self._sights.get(name)
            if held is None or held.state.version[0] != state.version[0]:
                made = Sight(state, published, handles(state), state.version[1], state.version[1])
            elif held.state.version[1] >= state.version[1] and held.published == published:
                return held
            else:
                made = self._later(held, state, published, handles)
            self._sights[name] = made
            return made

    def _later(
        self, held: Sight, state: AccessState, published: int, handles: Callable[[AccessState], Collection[str]]
    ) -> Sight:
        is_same = held.state.relations is state.relations and held.published == published
        readable = held.readable if is_same else handles(state)
        both = () if is_same else held.state.accounts.keys() & state.accounts.keys()
        is_changed = any((each in held.readable) != (each in readable) for each in both)
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            moves, floor = store.moves(held.state.version[1], state.version[1]), store.floor()
        known = [number for number, id_, op in moves if id_ in readable or (op == "Deleted" and id_ in held.readable)]
        return Sight(
            state,
            published,
            readable,
            max(known, default=max(held.position, floor)),
            state.version[1] if is_changed else held.rights_at,
        )

    def rights(self, account: str | None, sight: Sight) -> str:
        """Returns a text that differs once the account's rights have changed."""
        return self.seal(account, sight.rights_at, b"rights")

    def opened_rights(self, account: str | None, text: str) -> int | None:
        """Decrypts the log number in a text of ``rights``; ``None`` if the text is not one of this account."""
        return self.open(account, text, b"rights")

    def seal(self, account: str | None, number: int, *use: bytes) -> str:
        """Encrypts a log number for an account; the same number always gives the same text."""
        return self._cipher.encrypt(number.to_bytes(8, "big"), [*use, (account or "").encode()]).hex()

    def open(self, account: str | None, text: str, *use: bytes) -> int | None:
        """Decrypts a position; ``None`` if the text is not one of this account."""
        try:
            return int.from_bytes(self._cipher.decrypt(bytes.fromhex(text), [*use, (account or "").encode()]), "big")
        except (InvalidTag, ValueError):
            return None

    def sealed_text(self, account: str | None, text: str) -> str:
        """Encrypts a text for an account, such as the token of a list's next page."""
        sealed = self._cipher.encrypt(text.encode(), [b"text", (account or "").encode()])
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def opened_text(self, account: str | None, text: str) -> str | None:
        """Decrypts a text of ``sealed_text``; ``None`` if it is not one of this account."""
        try:
            sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            return self._cipher.decrypt(sealed, [b"text", (account or "").encode()]).decode()
        except (InvalidTag, ValueError, binascii.Error):
            return None


ROLE: Final = "access-role"
OWNER_ONLY: Final = "access-owner"
NO_ACCOUNT: Final = "access-identity"
"""The rule of a caller without an account who asks for more than to read; 401 over HTTP."""
_HOW: Final = "a Relations manifest with  subject: Account:{who}, relation: role, value: {role}, object: {what}"


class Guard:
    """Decides for one caller (the subject) who is not the node's owner. Lives for one request."""

    def __init__(
        self,
        home: StateDirectory,
        reader: AccessReader,
        subject: Principal,
        positions: SealedPositions,
        again: Callable[[], Principal] | None = None,
    ) -> None:
        """``again`` identifies the caller anew, for answers that last; it blocks, and raises Refused."""
        self.positions = positions
        self.home, self._reader, self.subject = home, reader, subject
        self._again = again if again is not None else lambda: subject

    def is_same_caller(self) -> bool:
        """Whether the caller is still the subject. Blocking. Raises Refused for a token that is no longer valid."""
        return self._again() == self.subject

    @property
    def published(self) -> int:
        """A counter that grows when datasets may have been published or withdrawn."""
        return self._reader.published()

    def look(self) -> tuple[Sight, str]:
        """Returns what the subject can read now, and a mark of its rights. Blocking.

        The mark changes when the subject's rights or the set of published datasets change, and when the subject is seen
        for the first time. It depends on nothing else: changes of private datasets do not show in it.
        """
        account, published = self.subject.account, self.published  # first: what comes meanwhile is looked at again
        public = self._reader.public_digest()
        sight = self.positions.look(account, self.state(), published, self._handles_at)
        return sight, f"{public}.{self.positions.rights(account, sight)}"

    def has_rights_of(self, version: str, mark: str, readable: Collection[str]) -> bool:
        """Whether the subject has the same rights now as when it was given ``version``. Blocking.

        ``mark`` and ``readable`` are those of now. The mark differs after a restart; then the log shows what was
        readable at ``version``.
        """
        position, _, said = version.partition("+")
        if said == mark:
            return True
        account, (public, _, rights) = self.subject.account, said.partition(".")
        at, rights_at = self.positions.open(account, position), self.positions.opened_rights(account, rights)
        if public != mark.partition(".")[0] or at is None or rights_at is None:
            return False
        before, now = self._reader.at(max(at, rights_at)), self.state()
        if before is None:
            return False
        then = self._handles_at(before)
        return all((each in then) == (each in readable) for each in before.accounts.keys() & now.accounts.keys())

    def version(self, number: int, mark: str) -> str:
        """Returns the version of the log at ``number``, in the form that the subject gets."""
        return f"{self.positions.seal(self.subject.account, number)}+{mark}"

    def number(self, version: str) -> int:
        """Returns the log number of a version that the subject was given. Blocking. Raises Invalid for other texts."""
        found = self.positions.open(self.subject.account, version.partition("+")[0])
        hint = "list again: odfctl get KIND -w without --since"
        if found is None:
            text = f"{version[:60]!r} is no version of this node's log of resources"
            raise Invalid(text, rule="resource-version", hint=hint)
        with self.home.database.read() as connection:
            floor = ResourceStore(connection).floor()
        if found < floor:  # in words without the numbers of the log
            text = f"{version[:60]} is too old: the log no longer has all changes after it"
            raise Invalid(text, rule="resource-version-too-old", hint=hint)
        return found

    # Datasets.

    def filter_datasets(self, datasets: Sequence[DatasetId]) -> Collection[DatasetId]:
        """Returns those of ``datasets`` that the subject can read. Blocking."""
        state, public = self._reader.read(), self._reader.public_of(datasets)
        return {
            dataset for dataset in datasets if self._role(state, _thing(state, dataset, is_published=dataset in public))
        }

    def size_for(self, dataset: DatasetId) -> int:
        """Returns the number of blocks of a dataset that the subject can read: all or none. Blocking."""
        head = self.home.chains.chain(dataset).head()
        return head.size if head is not None and self.filter_datasets([dataset]) else 0

    def find_dataset(self, ref: str, action: Action) -> DatasetEntry:
        """Returns the dataset ``ref`` if ``action`` is allowed on it. Blocking. Raises NotFound, Invalid, Refused."""
        state = self._reader.read()
        with self.home.catalog() as catalog:
            entry = catalog.resolve_as(ref, self.subject.account)
        # Looked up in any case: the time of an answer does not tell what is hidden from what is not there.
        sought = entry.id if entry is not None else _NOBODYS
        thing = _thing(state, sought, is_published=bool(self._reader.public_of([sought])))
        decision = authorize(self.subject, action, thing, state.relations)
        if entry is None or (decision is not None and decision.role is None):
            raise NotFound(
                f"no dataset {ref[:120]!r} here", rule="dataset-ref", hint="odfctl get datasets lists what you may read"
            )
        if decision is not None:
            raise self.deny(decision, f"Dataset:{entry.name}")
        return entry

    # Other resources.

    def resolve_name(self, type_: str, name: str) -> str:
        """Returns the id of what the subject calls by a name; else the name. Blocking."""
        with self.home.database.read() as connection:
            found = ResourceStore(connection).resolve(type_, name, self.subject.account)
        return name if found is None else found.id

    def is_of_account(self, id_: str) -> bool:
        """Whether an account has a resource, and not the node's owner. Blocking."""
        return self._reader.read().accounts.get(id_) is not None

    def filter_views(self, views: Sequence[wire.ResourceView]) -> list[wire.ResourceView]:
        """Returns those of ``views`` that the subject can read. Blocking."""
        state = self._reader.read()
        dids = {view.id: did for view in views if (did := state.dids.get(view.id)) is not None}
        public = self._reader.public_of(dids.values())

        def is_readable(view: wire.ResourceView) -> bool:
            # By what it says: of one that is gone, nothing else tells its account.
            account = view.headers.get("account", {}).get("id")
            return self._role(state, Thing(view.id, account, dids.get(view.id) in public)) is not None

        return list(filter(is_readable, views))

    def judge(self, view: wire.ResourceView, action: Action) -> None:
        """Raises Refused if ``action`` is not allowed on a resource that the subject can read. Blocking."""
        state = self._reader.read()
        decision = authorize(self.subject, action, _resource(state, view.id), state.relations)
        if decision is not None:
            raise self.deny(decision, f"{view.type}:{view.name}")

    def handles(self, ids: Iterable[str]) -> Collection[str]:
        """Returns those of some resource ids that the subject can read. Blocking."""
        return self.readable_things(self._reader.read(), ids)

    def readable_things(self, state: AccessState, things: Iterable[str]) -> Collection[str]:
        """Returns those of some resources (ids or dids) that exist and that the subject can read. Blocking."""
        standing = {thing: id_ for thing in things if (id_ := state.id_of(thing)) is not None}
        public = self._reader.public_of([state.dids[id_] for id_ in standing.values() if id_ in state.dids])
        return {
            each
            for each, id_ in standing.items()
            if self._role(state, _resource(state, id_, is_published=state.dids.get(id_) in public))
        }

    def describe_caller(self) -> wire.AccountView:
        """Returns the caller's account and its organisations. Blocking."""
        state, account = self._reader.read(), self.subject.account
        if account is None:
            return wire.AccountView()
        others = [
            state.names.get(identity, "") for identity in state.relations.identities(account) if identity != account
        ]
        return wire.AccountView(name=self.subject.name, id=account, organizations=tuple(sorted(filter(None, others))))

    # For what is judged several times at one state. Blocking.

    def state(self) -> AccessState:
        return self._reader.read()

    def role_of(self, state: AccessState, id_: str) -> Role | None:
        """Returns the subject's role on a resource; ``None`` if the subject must not learn that it exists."""
        return self._role(state, self._thing(state, id_))

    def denial(self, state: AccessState, id_: str, action: Action, what: str) -> Refused | None:
        """Returns the fault if ``action`` on a readable resource is not allowed; ``None`` if it is."""
        decision = authorize(self.subject, action, self._thing(state, id_), state.relations)
        return None if decision is None else self.deny(decision, what)

    def account(self, account: str) -> str | None:
        """Returns the id of a named account that is the subject's, or one of its organisations. Blocking."""
        state, sought = self._reader.read(), account.casefold()
        acting = state.relations.identities(self.subject.account or "")
        return next((each for each in acting if sought in (each, state.names.get(each, "").casefold())), None)

    def _thing(self, state: AccessState, id_: str) -> Thing:
        dataset = state.dids.get(id_)
        public = dataset is not None and bool(self._reader.public_of([dataset]))
        return _resource(state, id_, is_published=public)

    # Words.

    def deny(self, decision: Deny, what: str) -> Refused:
        """Builds the fault for an action on a resource that the subject can only read."""
        needed = decision.needed.word
        if self.subject.account is None:
            return self.nobody(f"{what} needs the role {needed}")
        if self.subject.most is not None and decision.needed > self.subject.most:
            return self._beyond_token(what, decision.needed)
        has = (decision.role or Role.READER).word  # who reads what is published is no more
        text = f"{what} needs the role {needed}, and {self.subject.name} is its {has}"
        how = _HOW.format(who=self.subject.name, role=needed, what=what)
        return Refused(text, rule=ROLE, hint=f"its owner grants it: {how}")

    def nobody(self, text: str) -> Refused:
        """Builds the fault for a caller without an account."""
        hint = "the node's owner names your user or group in unixCallers of an Account (odfctl docs access)"
        return Refused(f"{text}, and you have no account here", rule=NO_ACCOUNT, hint=hint)

    def owner_only(self, what: str) -> Refused:
        """Builds the fault for an operation that no role on a resource allows."""
        if self.subject.account is None:
            return self.nobody(f"{what} is for the node's owner")
        text = f"{what} is for the node's owner, and you act as {self.subject.name}"
        return Refused(text, rule=OWNER_ONLY, hint="ask them, or for the attribute admin of your account")

    def check_identified(self, what: str, least: Role = Role.EDITOR) -> None:
        """Raises Refused for a caller without an account, or with a token whose role is below ``least``."""
        if self.subject.account is None:
            raise self.nobody(f"{what} needs an account")
        if self.subject.most is not None and self.subject.most < least:
            raise self._beyond_token(what, least)

    def _beyond_token(self, what: str, needed: Role) -> Refused:
        most = self.subject.most or Role.READER
        text = f"{what} needs the role {needed.word}, and your token has at most the role {most.word}"
        return Refused(text, rule=ROLE, hint=f"ask with another: odfctl token create --role {needed.word}")

    def by_socket(self, what: str) -> None:
        """Raises Refused for a caller with a token: a stolen token must not be able to make another one."""
        if self.subject.token:
            hint = "ask there: odfctl --socket PATH, without --node"
            raise Refused(f"{what} is done at the control socket of the node", rule="token-by-token", hint=hint)

    def _handles_at(self, state: AccessState) -> Collection[str]:
        return self.readable_things(state, state.accounts)

    def _role(self, state: AccessState, thing: Thing) -> Role | None:
        return state.relations.role(self.subject, thing)


_NOBODYS: Final = DatasetId.from_public_key(bytes(32))
"""Stands for a dataset that does not exist here."""


def is_admin(subject: Principal, relations: Relations) -> bool:
    """Whether an account has every right."""
    return relations.role(subject, Thing("")) is Role.OWNER


def _thing(state: AccessState, dataset: DatasetId, *, is_published: bool) -> Thing:
    return _resource(state, state.id_of(str(dataset)) or "", is_published=is_published)


def _resource(state: AccessState, id_: str, *, is_published: bool = False) -> Thing:
    return Thing(id_, state.accounts.get(id_), is_published)


def not_meant(ref: str) -> Invalid:
    """Builds the fault for a request that does not name its datasets."""
    return Invalid(f"{ref} needs the names of datasets", rule="access-refs", hint="name each")
