"""Selects things for commands: by names, by patterns of names, and by labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from odfd.cli import kinds
from odfd.cli.command import argument
from odfd.cli.session import Session
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.errors import Usage

V = TypeVar("V", bound=wire.Value)
BY_LABELS: Final = argument(
    "-l", "--labels", metavar="SELECTOR", help="select by labels: 'env=prod,team in (a,b),!old'"
)


def check_declared(kind: kinds.Kind[Any], text: str) -> None:
    if kind not in (*kinds.DECLARED, kinds.RESOURCE):
        known = ", ".join(each.name for each in kinds.DECLARED)
        raise Usage(f"{kind.plural} {text}", hint=f"these are: {known}")


def is_pattern(kind: kinds.Kind[Any], name: str) -> bool:
    """Whether a text selects by names: it has a wildcard, which no name of a resource has."""
    return "%" in name or ("_" in name and kind in (*kinds.DECLARED, kinds.RESOURCE))


def meant_by(session: Session, kind: kinds.Kind[Any], names: Sequence[str]) -> list[str] | None:
    """Returns names with each pattern replaced by what it selects; ``None`` if there were some, and nothing is left.

    Raises Usage for a kind whose things are not selected.
    """
    found: list[str] = []
    for each in names:
        if is_pattern(kind, each):
            check_declared(kind, "are not selected by patterns")
            meant = [kind.key(row) for row in list_selected(session, kind, name=each).value]
            found += [name for name in meant if name not in found]
        else:
            found.append(each)
    return found if found or not names else None


def list_labelled(session: Session, kind: kinds.Kind[V], labels: str) -> Answer[list[V]]:
    """Returns the resources of a kind that ``labels`` selects."""
    return list_selected(session, kind, labels=labels)


def list_selected(
    session: Session, kind: kinds.Kind[V], *, labels: str | None = None, name: str | None = None
) -> Answer[list[V]]:
    """Returns the resources of a kind that have such labels, or such a name."""
    if kind is kinds.RESOURCE:
        found = session.client.do(calls.resources_of_all_types(name=name, labels=labels))
    else:
        found = kinds.list_resources(session.client, kind, labels=labels, name=name)
    return found  # type: ignore[return-value]  # the view is a manifest


def several(answers: Sequence[Answer[V]]) -> Answer[list[V]]:
    return Answer([each.value for each in answers], [each.sent for each in answers])
