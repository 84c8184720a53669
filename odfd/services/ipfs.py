"""All that a node does by way of its Kubo, joined: reading, replication, publishing; alive while ``run`` is."""

from __future__ import annotations

from chain.ids import DatasetId
from config.model import Settings
from odfd.ipfs.publishing import Publisher
from odfd.ipfs.replication import WithIpfs
from odfd.ipfs.source import Source
from odfd.kit.clock import Clock
from odfd.kit.supervision import Life
from odfd.services.home import STAGED, Home
from p2p.kubo.rpc import Ipfs, Kubo
from p2p.ports import Noticeboard, Replication


class WayToIpfs:
    """See the module."""

    def __init__(
        self, ipfs: Ipfs, home: Home, network: Replication, board: Noticeboard, clock: Clock, disk_reserve: int
    ) -> None:
        self._ipfs = ipfs
        self._clock = clock
        self.source = Source(ipfs, home.folder(STAGED), disk_reserve)
        self.replication = WithIpfs(network, ipfs, self.source, board, clock.now)
        self.publisher = Publisher(ipfs, home.database, home.chains, home.objects, home.keys)

    async def run(self, life: Life) -> None:
        """Connections to the Kubo, as long as the node lives."""
        async with self._ipfs:
            life.ready()
            await life.stopping.wait()

    async def found(self, place: str) -> DatasetId:
        """Whose dataset is published at a place, as it says. Raises Remote, Invalid."""
        return await self.source.dataset_at(place, self._clock.now())


def way_to_ipfs(
    settings: Settings, home: Home, network: Replication, board: Noticeboard, clock: Clock, ipfs: Ipfs | None
) -> WayToIpfs | None:
    """``None`` where the settings name no Kubo and no other ``ipfs`` is given."""
    said = settings.ipfs
    if ipfs is None and said.api:
        ipfs = Kubo(said.api, said.token)
    if ipfs is None:
        return None
    return WayToIpfs(ipfs, home, network, board, clock, settings.limits.disk_reserve_bytes)
