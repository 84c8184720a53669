"""Replicates between peers: hardened libp2p host, wire formats, sans-IO protocol machines, and their trio driver."""
