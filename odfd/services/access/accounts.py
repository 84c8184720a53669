"""Manages the caller's account and tokens, and refuses to delete accounts that still have resources."""

from __future__ import annotations

from typing import Final

from chain import instant
from chain.errors import Invalid, Refused
from chain.instant import Instant
from chain.wording import plural
from odfd.access.relations import ROLES
from odfd.access.tokens import TokenGrant
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import Permission, operation
from odfd.flows.schedule import parse_duration
from odfd.resources.controller import Controller
from odfd.resources.registry import VERSION
from odfd.resources.resource import ACCOUNT, Resource
from odfd.resources.store import ResourceStore
from odfd.runtime.subjects import Subjects
from odfd.store.access_tokens import TokenStore
from odfd.store.directory import StateDirectory

LONGEST: Final = 366 * 24 * 3600 * instant.SECOND
MAX_NOTE: Final = 200
_SHOWN: Final = 3


class AccountService:
    """The API service for the caller's account and its tokens. Accounts themselves are resources."""

    def __init__(self, home: StateDirectory, tokens: TokenStore, context: Context) -> None:
        self._home, self._tokens, self._context = home, tokens, context

    @operation("GET", f"/auth/{VERSION}/self", needs=Permission.BY_RULE)
    def me(self) -> wire.AccountView:
        """Returns the account of the caller."""
        # For other callers than the node's owner, ``odfd.api.access.rules`` answers.
        return wire.AccountView(node_owner=True)

    @operation("POST", f"/auth/{VERSION}/tokens", needs=Permission.BY_RULE)
    def create_token(self, request: wire.TokenRequest, account: str | None = None) -> wire.TokenView:
        """Makes a token of an account, which this answer alone contains. Raises Refused, Invalid."""
        if account is None:
            hint = "odfctl --account NAME token create; one of every right is of an account with the attribute admin"
            raise Refused("a token is of an account, and the owner of a node is none", rule="token-account", hint=hint)
        expires = self._context.clock.now() + _length(request)
        most = ROLES[request.role]
        token, grant = self._tokens.make(account, most, request.note, Instant(expires))
        (view,) = self._views([grant])
        text = f"{grant.id}, valid until {view.expires_at}"
        self._context.events.emit("token.created", view.account, text, about=Subjects(account=grant.account))
        return wire.TokenView(
            id=view.id, account=view.account, role=view.role, created_at=view.created_at, expires_at=view.expires_at,
            note=view.note, token=token,
        )  # fmt: skip

    @operation("GET", f"/auth/{VERSION}/tokens", needs=Permission.BY_RULE)
    def tokens(self, account: str | None = None) -> list[wire.TokenView]:
        """Lists the tokens of one account, or of all."""
        return self._views(self._tokens.list(account))

    @operation("DELETE", f"/auth/{VERSION}/tokens" + "/{id}", needs=Permission.BY_RULE)
    def revoke_token(self, id_: str, account: str | None = None) -> wire.TokenView:
        """Revokes a token, effective at once. Raises NotFound."""
        grant = self._tokens.revoke(id_, account)
        (view,) = self._views([grant])
        self._context.events.emit("token.revoked", view.account, view.id, about=Subjects(account=grant.account))
        return view

    def _views(self, grants: list[TokenGrant]) -> list[wire.TokenView]:
        names = self._names()
        return [
            wire.TokenView(
                id=grant.id, account=names.get(grant.account, grant.account), role=grant.most.word, note=grant.note,
                created_at=instant.render(grant.created_at), expires_at=instant.render(grant.expires_at),
            )
            for grant in grants
        ]  # fmt: skip

    def _names(self) -> dict[str, str]:
        with self._home.database.read() as connection:
            return {each.id: each.name for each in ResourceStore(connection).all("Account")}


def _length(request: wire.TokenRequest) -> int:
    """Returns the requested validity in nanoseconds. Raises Invalid."""
    length = parse_duration(request.expires)
    if not 0 < length <= LONGEST:
        raise Invalid(f"a token valid for {request.expires[:40]}", rule="token-expires", hint="1s to 366d")
    if len(request.note) > MAX_NOTE or not request.note.isprintable():
        raise Invalid("the note is no line of text", rule="token-note", hint=f"at most {MAX_NOTE} characters")
    return length


class AccountController(Controller):
    """Keeps an account while it has resources."""

    type = ACCOUNT

    def __init__(self, home: StateDirectory) -> None:
        self._home = home

    def check(self, before: Resource, after: Resource | None) -> None:
        if after is not None:
            return
        with self._home.database.read() as connection:
            every = ResourceStore(connection).all()
        theirs = [each for each in every if each.account == before.id and not each.owners]
        if theirs:
            named = ", ".join(f"{each.type} {each.name}" for each in theirs[:_SHOWN])
            more = f" and {plural(len(theirs) - _SHOWN, 'other')}" if len(theirs) > _SHOWN else ""
            hint = "delete them first, or give them to another: headers.account"
            raise Refused(f"Account {before.name} has {named}{more}", rule="account-in-use", hint=hint)
