"""Shows the main job on real nodes and real data; every claim it prints was checked by it."""
