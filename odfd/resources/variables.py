"""Finds ``${{ NAME }}`` in texts of resources: what a name means, each kind says itself. Pure."""

from __future__ import annotations

import re
from typing import Final

VARIABLE: Final = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
