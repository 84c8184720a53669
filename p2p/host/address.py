"""See ``p2p.address``: addresses are needed below the host too."""

from p2p.address import MAX_ADDRESS, Address, network_of, parse_address

__all__ = ["MAX_ADDRESS", "Address", "network_of", "parse_address"]
