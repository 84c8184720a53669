"""Says what a Repository may be: where it is. Pure.

A URL is shown wherever a repository is, so one with a password or a query is refused, and no message repeats it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from chain.errors import Fault, Invalid
from odfd.resources.manifest import Draft, described
from p2p.web import folder_url

Kind: TypeAlias = Literal["folder", "web"]
_HINT: Final = "file:///FOLDER or https://HOST/FOLDER: the folder that holds the folders of datasets"


class RepositorySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A place of many datasets, each in a folder of its name."""

    url: Annotated[str, described("file:///FOLDER or https://HOST/FOLDER.")]


class Place(NamedTuple):
    """Where a repository is."""

    kind: Kind
    root: str
    """A folder's path, or a URL; without its last slash."""

    def of(self, dataset: str) -> str:
        """Where a dataset lies in it; what import and export understand."""
        return f"{self.root}/{dataset}"


def check_repository(draft: Draft) -> None:
    """Adds to the mistakes of a draft."""
    try:
        place_of(draft.spec.url)
    except Fault as fault:
        draft.note("spec.url", fault.message, fault.rule, fault.hint)


def place_of(url: str) -> Place:
    """Raises Invalid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad("it cannot be read") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise _bad("it would be shown wherever the repository is, so it has neither a password nor ? nor #")
    if parts.scheme == "file":
        return _folder(parts)
    if (web := folder_url.place_of(url)) is not None:
        return Place("web", web)
    raise _bad(f"nothing is known of {parts.scheme[:20] or 'its kind'}")


def _folder(parts: SplitResult) -> Place:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise _bad("a folder of this machine is named by its whole path")
    return Place("folder", path.rstrip("/"))


def _bad(why: str) -> Invalid:
    return Invalid(f"not the URL of a repository: {why}", rule="repository-url", hint=_HINT)
