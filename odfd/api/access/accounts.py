"""Tells callers who they are, and keeps accounts that have something from being deleted."""

from __future__ import annotations

from typing import Final

from chain.errors import Refused
from chain.wording import plural
from odfd.control import wire
from odfd.resources.declared import DeclaredResource, DeclaredStore
from odfd.state.directory import StateDirectory

_SHOWN: Final = 3


class AccountService:
    """The API service for the account that asks; accounts themselves are resources."""

    async def me(self) -> wire.AccountView:
        """Returns who asks: of the services that the node's owner gets, they."""
        return wire.AccountView(node_owner=True)


def account_in_use(home: StateDirectory, before: DeclaredResource, after: DeclaredResource | None) -> None:
    """Raises Refused for the deletion of an account that has resources. Blocking."""
    if after is not None:
        return
    with home.database.read() as connection:
        theirs = [each for each in DeclaredStore(connection).all() if each.account == before.id and not each.owners]
    if theirs:
        named = ", ".join(f"{each.type} {each.name}" for each in theirs[:_SHOWN])
        more = f" and {plural(len(theirs) - _SHOWN, 'other')}" if len(theirs) > _SHOWN else ""
        hint = "delete them first, or give them to another: headers.account"
        raise Refused(f"Account {before.name} has {named}{more}", rule="account-in-use", hint=hint)
