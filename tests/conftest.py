"""For all tests: how long an example takes is the machine's affair, and no test asserts a time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("odfd", deadline=None)
settings.load_profile("odfd")
