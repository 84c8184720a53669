"""Makes and reads IPFS names and records. Pure; ``p2p.kubo`` transports them."""
