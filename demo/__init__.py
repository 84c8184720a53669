"""The main job on real nodes and real data, told as it happens; every claim it prints was checked by it."""
