"""Re-exports ``p2p.address``, because modules below the host need addresses too."""

from p2p.address import MAX_ADDRESS, Address, network_of, parse_address

__all__ = ["MAX_ADDRESS", "Address", "network_of", "parse_address"]
