"""The HTTP RPC of a Kubo, the IPFS daemon that an operator runs beside the node."""
