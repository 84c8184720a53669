"""Fetches one address of this machine: what ``curl -fsS`` does, where there is no curl."""

import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1]) as answer:  # noqa: S310  the address is the caller's own
    sys.stdout.write(answer.read().decode())
