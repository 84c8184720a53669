"""Defines the pattern of ``${{ NAME }}`` in texts of resources; each kind defines the names. Pure."""

from __future__ import annotations

import re
from typing import Final

VARIABLE: Final = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
