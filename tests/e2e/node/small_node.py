"""``small_node.py STATE``: the daemon of ``worlds.small_node``, as the tests here start it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from worlds.small_node import odfd

if __name__ == "__main__":
    odfd(["run", "--state", *sys.argv[1:]])
