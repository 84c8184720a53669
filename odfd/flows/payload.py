"""Fills in the payload of a flow's task ``WebhookCall``: the event and the time of its run, and nothing else. Pure."""

from __future__ import annotations

from typing import Final

from chain.errors import Invalid
from odfd.resources.manifest import VARIABLE

MAX_PAYLOAD: Final = 64 * 1024
_EVENT: Final = "trigger.event"
_TIME: Final = "trigger.time"


def check_payload(text: str) -> str:
    """Returns a payload that is valid. Raises Invalid for an unknown variable, or if it is too long."""
    unknown = [each for each in VARIABLE.findall(text) if each not in (_EVENT, _TIME)]
    if unknown:
        hint = f"known are ${{{{ {_EVENT} }}}} and ${{{{ {_TIME} }}}}"
        raise Invalid(f"unknown variable {unknown[0][:60]!r} in a payload", rule="webhook-payload", hint=hint)
    if len(text.encode()) > MAX_PAYLOAD:
        raise Invalid(f"a payload of more than {MAX_PAYLOAD} bytes", rule="webhook-payload", hint="make it shorter")
    return text


def fill(payload: str | None, event: str, time: str) -> str:
    """Returns the text to send; for no payload the event alone."""
    values = {_EVENT: event, _TIME: time}
    return event if payload is None else VARIABLE.sub(lambda found: values[found[1]], payload)
