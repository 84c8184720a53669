"""See ``p2p.identity``: identities are needed below the host too."""

from p2p.identity import SEED_SIZE, did_of_peer, did_of_seed, parse_peer, peer_of_did, peer_of_seed

__all__ = ["SEED_SIZE", "did_of_peer", "did_of_seed", "parse_peer", "peer_of_did", "peer_of_seed"]
