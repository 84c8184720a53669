"""Makes what calls the targets of webhooks."""

from __future__ import annotations

import secrets
from functools import partial

from config.model import Settings
from odfd.services.feature import Feature, Ground, worker
from odfd.services.node_events import DatasetDescribed, DatasetMoved, StatementSigned, VisibilityChanged
from odfd.services.peers.host_options import checked_inside
from odfd.services.webhooks.calls import WebhookController, WebhookWorker
from odfd.store.catalog import Labels
from p2p.ip import IpNetwork
from p2p.peers.directory import networks


class WebhooksFeature(Feature):
    def __init__(self, ground: Ground, labels: Labels) -> None:
        self.webhooks = WebhookWorker(
            ground.home,
            ground.context,
            lambda: webhook_networks(ground.settings),
            partial(secrets.token_hex, 16),
            labels,
        )
        self.children = (worker("webhooks", self.webhooks.run),)
        self.controllers = (WebhookController(self.webhooks),)
        touch = self.webhooks.loop.touch
        ground.bus.subscribe(lambda each: touch(each.dataset), StatementSigned, VisibilityChanged, soon=True)
        ground.bus.subscribe(lambda each: touch(each.dataset), DatasetMoved, DatasetDescribed)


def webhook_networks(settings: Settings) -> tuple[IpNetwork, ...]:
    """Returns the networks in which webhooks may be called. Raises Invalid."""
    return networks(checked_inside("webhooks", settings.webhooks.inside))
