"""Publishes datasets: their visibility, their cards, and their copies on IPFS."""
