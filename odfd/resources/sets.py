"""Sets of values that other resources read: what a VariableSet may say. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from chain.codec.bind import found
from chain.model.wire import Extra
from odfd.resources.manifest import Draft, described

KEY: Final = re.compile(r"[A-Za-z_][\w.-]{0,127}\Z", re.ASCII)
MAX_KEYS: Final = 256
MAX_VALUE_BYTES: Final = 64 * 1024
_TEXTS: Final = msgspec.Meta(extra_json_schema={"additionalProperties": {"type": "string"}, "maxProperties": MAX_KEYS})


class VariableSetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Values, each under its name."""

    variables: Annotated[Extra, described("Names to texts; at most 256, of 64 KiB."), _TEXTS]


def check_variables(draft: Draft) -> None:
    """Adds to the mistakes of a draft."""
    check_values(draft, "spec.variables", draft.spec.variables)


def check_values(draft: Draft, path: str, values: dict[str, object]) -> None:
    if len(values) > MAX_KEYS:
        draft.note(path, f"{len(values)} values", "set-limit", f"at most {MAX_KEYS}; write a second set")
    for key, value in values.items():
        if not KEY.match(key):
            draft.note(f"{path}.{key}", f"{key[:60]!r} is no name of a value", "set-key", "like apiKey or API_KEY")
        if not isinstance(value, str):
            hint = "put it in quotes" if isinstance(value, int | float) else ""
            draft.note(f"{path}.{key}", f"expected text, found {found(value)}", "manifest-type", hint)
        elif len(value.encode()) > MAX_VALUE_BYTES:
            draft.note(f"{path}.{key}", "larger than 64 KiB", "set-limit")
