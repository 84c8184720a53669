"""IPFS: names and records that an IPFS node takes from us, made and read here. Pure; who carries them is elsewhere."""
