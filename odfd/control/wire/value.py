"""Defines the base classes of all values of the API, and the value that stands for a fault."""

from __future__ import annotations

import msgspec

from chain.errors import Fault
from odfd import errors


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of values in responses."""


class Request(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """The base of requests. An unknown field is an error of the caller and never ignored.

    Fields with their default values are not sent, so that an older daemon, which does not know all of them, can be
    asked.
    """


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fault inside a larger answer: the members of ``odfd.errors.to_problem``."""

    title: str = ""
    status: int = 0
    detail: str = ""
    family: str = ""
    exit_code: int = 70
    rule: str = ""
    hint: str = ""
    place: str = ""
    causes: tuple[str, ...] = ()

    @classmethod
    def of(cls, fault: Fault) -> Problem:
        return msgspec.convert(errors.to_problem(fault), cls)

    def fault(self) -> Fault:
        return errors.from_problem(msgspec.to_builtins(self))
