"""Makes the accounts of the node, their tokens, and the server of the control API over TCP."""

from __future__ import annotations

import secrets

from odfd.control.remote import RemoteServer
from odfd.services.access.accounts import AccountController, AccountService
from odfd.services.feature import Feature, Ground
from odfd.store.access_tokens import TokenStore


class AccessFeature(Feature):
    def __init__(self, ground: Ground) -> None:
        home, context, api = ground.home, ground.context, ground.settings.api
        self.tokens = TokenStore(home.database, context.clock.now, secrets.token_bytes)
        self.remote = RemoteServer(api, self.tokens.admit, context.logger) if api.listen else None
        """``None`` if the settings have no address for it."""
        self.operations = (AccountService(home, self.tokens, context),)
        self.controllers = (AccountController(home),)
