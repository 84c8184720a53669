"""Performs operations for the caller of a request, who is judged by what each operation needs.

This is the only point of enforcement: every transport performs operations here. Administrators get every operation; a
stream ends once its caller is no longer an administrator.
"""

from __future__ import annotations

import grp
import inspect
import pwd
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

import msgspec
import trio

from chain.errors import Refused
from odfd.access.callers import UnixCaller, subject_of
from odfd.access.relations import OWNER, Action, Principal, Role
from odfd.access.tokens import TokenGrant
from odfd.api.access.rules import RULES, on_dataset, on_refs
from odfd.api.services import operations
from odfd.control.endpoint import ACT_AS, CALLER, GRANT, OWNED, Caller
from odfd.control.operations import EachOf, Owner, Permission
from odfd.runtime.hanging_calls import invoke
from odfd.runtime.http import Message
from odfd.runtime.subjects import Subjects
from odfd.services.access.calls import Call, SubjectsOf, TaskOwners
from odfd.services.access.guard import OWNER_ONLY, Guard, SealedPositions, is_admin
from odfd.store.access_state import AccessReader
from odfd.store.directory import StateDirectory

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class AccessControl:
    """Identifies the caller of each request. ``own_uid``: the user of the node's process.

    ``about``: return what a task is about, by its id, and what resources are about; ``is_good``: whether a token is
    still valid, by its id.
    """

    def __init__(
        self,
        home: StateDirectory,
        reader: AccessReader,
        own_uid: int,
        about: tuple[Callable[[str], Subjects], SubjectsOf],
        is_good: Callable[[str], bool] = lambda _: False,
        *,
        key: bytes,
    ) -> None:
        """``key``: encrypts positions in the log (``KEY_BYTES``); it belongs to this node and its log."""
        self._home, self._reader, self._own_uid, self._is_good = home, reader, own_uid, is_good
        self._tasks = TaskOwners(*about)
        self._positions = SealedPositions(home, key)

    async def subject(self, scope: Message) -> Principal:
        """Returns the caller. Raises Refused, NotFound."""
        wanted = _account_wanted(scope)
        caller: Caller | None = scope.get(CALLER)
        if scope.get(GRANT) is not None:
            return await trio.to_thread.run_sync(self._now, scope)
        if caller is None and not scope.get(OWNED):
            raise Refused("the caller cannot be identified", rule="access-caller", hint="ask at the control socket")
        uid = self._own_uid if caller is None else caller.uid
        if uid in (0, self._own_uid) and not wanted:
            return OWNER
        return await trio.to_thread.run_sync(self._now, scope)

    def dispatcher(self, services: object, subject: Principal, scope: Message | None = None) -> Dispatcher:
        """Returns what a subject may call. ``scope``: the request, to identify the caller again later."""
        if subject == OWNER:
            return Dispatcher(services)
        again = None if scope is None else partial(self._now, scope)
        guard = Guard(self._home, self._reader, subject, self._positions, again)
        return Dispatcher(services, guard, self._tasks)

    def guard_of(self, grant: TokenGrant) -> Guard:
        """Returns the guard for a request with a token outside of the control API. Blocking. Raises Refused."""
        again = partial(self._bearer, grant, "")
        return Guard(self._home, self._reader, again(), self._positions, again)

    def _now(self, scope: Message) -> Principal:
        """Blocking."""
        grant: TokenGrant | None = scope.get(GRANT)
        if grant is not None:
            return self._bearer(grant, _account_wanted(scope))
        return self._subject(scope.get(CALLER) or Caller(0, self._own_uid, 0), _account_wanted(scope))

    def _bearer(self, grant: TokenGrant, wanted: str) -> Principal:
        """Returns the caller of a token: its account, or the owner for an administrator's token without a limit."""
        state = self._reader.read()
        name = state.names.get(grant.account)
        if name is None or not self._is_good(grant.id):
            raise Refused("the token is no longer good", rule="access-token", hint="ask for another")
        if wanted and wanted.casefold() not in (name.casefold(), grant.account):
            hint = "a token is of one account: leave --account out"
            raise Refused(f"you may not act as the account {wanted[:120]!r}", rule="access-account", hint=hint)
        most = None if grant.most is Role.OWNER else grant.most
        found = Principal(grant.account, name=name, most=most, token=grant.id)
        return msgspec.structs.replace(found, is_owner=most is None and is_admin(found, state.relations))

    def _subject(self, caller: Caller, wanted: str) -> Principal:
        state = self._reader.read()
        named = UnixCaller(caller.uid, frozenset(_users(caller.uid)), frozenset(_groups({caller.gid, *caller.groups})))
        found = subject_of(named, self._own_uid, state.callers, wanted)
        return msgspec.structs.replace(found, is_owner=found.is_owner or is_admin(found, state.relations))


class Dispatcher:
    """The operations of a node's services, as one caller may call them: an operation is named as its class has it.

    ``services``: all that a node has (``Services``). Without a ``guard`` the caller is the node's owner.
    """

    def __init__(self, services: object, guard: Guard | None = None, tasks: TaskOwners | None = None) -> None:
        self._services, self._guard, self._tasks = services, guard, tasks

    @overload
    def do(
        self, operation: Callable[Concatenate[S, P], Coroutine[Any, Any, T]], *args: P.args, **more: P.kwargs
    ) -> Awaitable[T]: ...

    @overload
    def do(self, operation: Callable[Concatenate[S, P], T], *args: P.args, **more: P.kwargs) -> Awaitable[T]: ...

    def do(self, operation: Callable[..., Any], *args: Any, **more: Any) -> Awaitable[Any]:
        """Performs an operation, one that blocks in a worker thread. Raises Refused, NotFound as its rule does."""
        done: Awaitable[Any] = self._judge(operation, is_stream=False)(*args, **more)
        return done

    def follow(
        self, operation: Callable[Concatenate[S, P], AsyncIterator[T]], *args: P.args, **more: P.kwargs
    ) -> AsyncGenerator[T, None]:
        """Performs an operation whose answer is a stream."""
        told: AsyncGenerator[T, None] = self._judge(operation, is_stream=True)(*args, **more)
        return told

    def _judge(self, operation: Callable[..., Any], *, is_stream: bool) -> Callable[..., Any]:
        """Returns the operation of the service, which judges the caller first."""
        found = operations()[operation]
        service = getattr(self._services, found.service)
        perform: Callable[..., Any] = getattr(service, operation.__name__)
        if not is_stream and not inspect.iscoroutinefunction(perform):
            perform = partial(invoke, perform)
        guard, needs = self._guard, found.operation.needs
        if guard is None:
            return perform
        if guard.subject.is_owner and not found.operation.is_watched:
            administrators: Callable[..., Any] = of_administrator(guard, perform)
            return administrators
        assert self._tasks is not None
        call = Call(guard, self._tasks, service, perform)
        match needs:
            case Action():
                return partial(on_dataset, needs, call)
            case EachOf(action):
                return partial(on_refs, action, call)
            case Permission.FREE:
                return perform
            case Permission.BY_RULE:
                return partial(RULES[operation], call)
            case Owner():
                raise guard.owner_only(f"the operation {found.name}")


def _account_wanted(scope: Message) -> str:
    """Returns the account that a request asks to act as."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == ACT_AS.encode()), "")


def _users(uid: int) -> Iterator[str]:
    yield str(uid)
    with suppress(KeyError):
        yield pwd.getpwuid(uid).pw_name


def _groups(gids: set[int]) -> Iterator[str]:
    for gid in gids:
        yield str(gid)
        with suppress(KeyError):
            yield grp.getgrgid(gid).gr_name


def of_administrator(guard: Guard, operation: Any) -> Any:
    """Returns the operation; a stream that it returns ends when the caller loses the rights of an administrator."""

    def call(*args: Any, **more: Any) -> Any:
        value = operation(*args, **more)
        if isinstance(value, AsyncIterator):
            return _while_same(guard, value)
        return _await(guard, value) if isinstance(value, Awaitable) else value

    return call if callable(operation) else operation


async def _await(guard: Guard, value: Awaitable[Any]) -> Any:
    found = await value
    return _while_same(guard, found) if isinstance(found, AsyncIterator) else found


async def _while_same(guard: Guard, values: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    async with aclosing(cast("AsyncGenerator[Any, None]", values)) as opened:
        async for each in opened:
            if not await trio.to_thread.run_sync(guard.is_same_caller):
                text = f"{guard.subject.name} has no longer every right"
                raise Refused(text, rule=OWNER_ONLY, hint="ask again, for what the account may read")
            yield each
