"""Values about keys whose signing journals are lost, and how they sign again."""

from __future__ import annotations

from odfd.control.wire.value import Request, Value


class SignRequest(Request, frozen=True, kw_only=True):
    alone: bool = False
    """Though none that is listed can be asked what the keys have signed before."""


class SignerView(Value, frozen=True, kw_only=True):
    """A key whose journal was begun anew."""

    key: str
    dataset: str | None = None
    """Whose key it is, by its name here; ``null`` for the node's own."""
    said: int
    """Things of which its last word is known: datasets that it signed heads of, verdicts, cosigned trees."""


class SigningView(Value, frozen=True, kw_only=True):
    """None begun: no journal was gone."""

    begun: tuple[SignerView, ...] = ()
    peers: int = 0
    """Listed groups that told what they know."""
