"""Re-exports ``p2p.identity``, because modules below the host need identities too."""

from p2p.identity import SEED_SIZE, did_of_peer, did_of_seed, parse_peer, peer_of_did, peer_of_seed

__all__ = ["SEED_SIZE", "did_of_peer", "did_of_seed", "parse_peer", "peer_of_did", "peer_of_seed"]
