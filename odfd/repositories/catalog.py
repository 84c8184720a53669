"""Resolves repositories by name, and references ``REPOSITORY/DATASET``; opens buckets and SFTP servers. Blocking."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from chain.ids import parse_own_name
from chain.store.database import Database
from odfd.repositories.bucket import Bucket, open_bucket
from odfd.repositories.manifest import IPFS, NODE, SFTP_SECRETS, TOKEN, Kind, RepositoryPlace, node_place, place_of
from odfd.repositories.sftp import SftpFiles, open_sftp
from odfd.resources.resource import Resource
from odfd.resources.sets import SecretSealer, binding
from odfd.resources.store import ResourceStore
from odfd.runtime.buckets import CREDENTIALS, WAYS

TYPE: Final = "Repository"
_UNANSWERED: Final = frozenset({"web-failed", "web-slow"})
_DAMAGED: Final = frozenset(
    {"block-hash", "layout-head", "object-hash", "object-size", "published-statement", "published-tree", "web-missing"}
)
"""Rules that a copy breaks which is not whole, or not what was pushed."""


class Target(NamedTuple):
    """A dataset in a repository."""

    repository: str
    place: RepositoryPlace
    dataset: str

    def __str__(self) -> str:
        """Returns the form that people write, ``REPOSITORY/DATASET``."""
        return f"{self.repository}/{self.dataset}"

    @property
    def at(self) -> str:
        return self.place.of(self.dataset)

    def told(self, fault: Fault) -> Fault:
        """Returns a fault of a pull as one of the repository, with what to do about it."""
        if fault.rule == "layout-dataset":
            hint = "names are those under which datasets were pushed; odfctl repo list shows where it is"
            return NotFound(f"{self.repository} has no dataset {self.dataset}", rule="repository-dataset", hint=hint)
        if fault.rule in _UNANSWERED:
            fault.hint = "try again: the received bytes are kept; odfctl repo list shows where it is"
        elif fault.rule in _DAMAGED and not fault.hint:
            fault.hint = f"nothing of {self} was stored: the writer of {self.repository} has to push it again"
        return fault


def is_target(ref: str) -> bool:
    """Whether a reference is ``REPOSITORY/DATASET``, or the URL of a dataset at a node.

    Names and dids contain no slash, and IPFS places begin with one.
    """
    return (ref.find("/") > 0 and "://" not in ref) or ref.lower().startswith(NODE)


class Repositories:
    """Looks up the declared repositories of a node, and opens their files."""

    def __init__(self, database: Database, secrets: SecretSealer) -> None:
        self._database = database
        self._secrets = secrets
        self._opened: dict[str, tuple[object, Bucket | SftpFiles]] = {}
        self._lock = threading.Lock()

    def files(self, name: str) -> Bucket | SftpFiles:
        """Returns the files of a repository that is a bucket or on an SFTP server, with their connections.

        Raises NotFound, Invalid, Refused, Environment.
        """
        resource = self._find_named(name)
        place = _place(resource)
        if place.sftp is not None:
            credentials = self._credentials(resource, SFTP_SECRETS, [(each,) for each in SFTP_SECRETS])
        elif place.bucket is not None:
            store = place.bucket.store
            credentials = self._credentials(resource, CREDENTIALS[store], WAYS[store])
        else:
            raise Invalid(f"{resource.name} is no bucket", rule="repository", hint="odfctl repo list")
        host_key = resource.spec.get("hostKey", "")
        said = (resource.name, place, host_key, credentials)
        with self._lock:
            opened, files = self._opened.get(resource.id, (None, None))
            if files is None or opened != said:
                if isinstance(files, SftpFiles):
                    files.close()
                files = (
                    open_bucket(resource.name, place, credentials)
                    if place.sftp is None
                    else open_sftp(resource.name, place, host_key, credentials)
                )
                self._opened[resource.id] = said, files
        return files

    def close(self) -> None:
        """Ends connections to SFTP servers."""
        with self._lock:
            opened, self._opened = self._opened, {}
        for _, files in opened.values():
            if isinstance(files, SftpFiles):
                files.close()

    def kind(self, name: str) -> Kind:
        """Returns the kind of a repository's place. Raises NotFound, Invalid."""
        return _place(self._find_named(name)).kind

    def url(self, name: str) -> str:
        """Returns the URL of a repository on a web server or at a node, for HTTP. Raises NotFound, Invalid."""
        return _place(self._find_named(name)).root.removeprefix(NODE)

    def check_folder(self, name: str) -> None:
        """Raises Environment if the folder of a repository cannot be read. Also raises NotFound, Invalid."""
        root = Path(_place(self._find_named(name)).root)
        if not root.is_dir() or not os.access(root, os.R_OK | os.X_OK):
            hint = "make it, or mount its disk, and let the node's user read it"
            raise Environment(f"{root} is no folder that can be read", rule="repository-folder", hint=hint)

    def node(self, name: str) -> tuple[str, str]:
        """Returns the URL of a repository that is a node, and its token or nothing. Raises NotFound, Invalid."""
        resource = self._find_named(name)
        credentials = self._credentials(resource, (TOKEN,), ((TOKEN,),))
        return _place(resource).root.removeprefix(NODE), credentials.get(TOKEN, "").strip()

    def _credentials(self, resource: Resource, keys: Sequence[str], ways: Sequence[Sequence[str]]) -> Mapping[str, str]:
        """Returns the secrets of a repository, or nothing for a public place. No message has values.

        ``ways``: groups of secrets, of which one has to be complete.
        """
        if not resource.spec.get("credentials"):
            return {}
        (handle,) = resource.references.values()
        with self._database.read() as connection:
            found = None if handle is None else ResourceStore(connection).get(handle.id)
        if found is None:
            text = f"the SecretSet of repository {resource.name} is not here"
            raise NotFound(text, rule="repository-credentials", hint="apply it, and the repository again")
        sealed = found.spec["secrets"]
        if not any(all(key in sealed for key in way) for way in ways):
            missing = " and no ".join(key for way in ways for key in way if key not in sealed)
            hint = f"it is opened with {' or '.join(' and '.join(way) for way in ways)}"
            raise Invalid(f"SecretSet {found.name} has no {missing}", rule="repository-credentials", hint=hint)
        return {
            key: self._secrets.open(sealed[key]["value"], (binding(found.id, key),)).reveal()
            for key in keys
            if key in sealed
        }

    def targets(self, refs: Sequence[str]) -> list[Target]:
        """Returns those references that are to datasets in repositories. Raises NotFound; Invalid for other URLs."""
        for place in (ref for ref in refs if "://" in ref and not is_target(ref)):
            raise Invalid(
                f"a dataset is not pulled by its URL: {place}",
                rule="pull-place",
                hint="odfctl import takes a copy once, and odfctl mirror add follows it; for a repository: "
                "odfctl repo add NAME URL, then odfctl pull NAME/DATASET",
            )
        return [self.target(ref) for ref in refs if self.has(ref)]

    def has(self, ref: str) -> bool:
        """Whether a reference is to a dataset in a repository, and not to ``account/name``, which is written alike.

        A repository that has the name of the account goes before.
        """
        if not is_target(ref) or ref.lower().startswith(NODE):
            return is_target(ref)
        with self._database.read() as connection:
            store = ResourceStore(connection)
            is_named = store.row_named(TYPE, ref.partition("/")[0], None) is not None
            return is_named or store.resolve("Dataset", ref, None) is None

    def target(self, text: str, dataset: str = "") -> Target:
        """Resolves a target. ``dataset``: its name if only a repository is given. Raises NotFound, Invalid."""
        if (url := node_place(text)) is not None:
            return _at_node(url, dataset)
        name, _, path = text.partition("/")
        path = path or dataset
        for part in path.split("/"):
            parse_own_name(part)
        resource = self._find_named(name, "" if dataset else f", and no dataset {text[:120]!r}")
        return Target(resource.name, _place(resource), path)

    def to_push(self, text: str | None, dataset: str) -> Target:
        """Resolves a target as ``target``; without a text, in the only repository.

        Also raises Refused for a read-only one.
        """
        target = self.target(self._only() if text is None else text, dataset)
        if target.place.root.startswith(IPFS):
            hint = "push to ipns://NAME, the name of this node's own key"
            text = f"what {target.repository} names by its hash never changes"
            raise Refused(text, rule="repository-read-only", hint=hint)
        if target.place.kind == "web":
            hint = "the server's operator writes its folder: odfctl push to a file:// repository that it serves"
            raise Refused(f"{target.repository} is read over HTTP, not written", rule="repository-read-only", hint=hint)
        return target

    def _find_named(self, name: str, nor: str = "") -> Resource:
        """``nor``: what the name could have meant too, and is not here either. Raises NotFound."""
        with self._database.read() as connection:
            found = ResourceStore(connection).find_named(TYPE, name, None)
        if found is None:
            hint = "odfctl repo list; odfctl repo add NAME URL"
            raise NotFound(f"there is no repository {name[:80]!r}{nor}", rule="repository", hint=hint)
        return found

    def _only(self) -> str:
        with self._database.read() as connection:
            names = [each.name for each in ResourceStore(connection).all(TYPE)]
        if len(names) != 1:
            count = f"there are {len(names)} repositories" if names else "there is no repository"
            raise Invalid(f"{count}: say which", rule="repository", hint="odfctl push NAME --to REPOSITORY")
        return names[0]


def _at_node(url: str, dataset: str) -> Target:
    """Returns the target at a node: the last part of the URL is the dataset, unless the URL is only a host.

    For a host ``dataset`` names it. Raises Invalid.
    """
    root, _, last = url.rpartition("/")
    if root.endswith(":/"):
        if not dataset:
            text = f"{url[:200]} names a node, and no dataset"
            raise Invalid(text, rule="repository", hint="odf+https://HOST/NAME is a dataset")
        root, last = url, dataset
    return Target(root, RepositoryPlace("node", root), parse_own_name(last))


def _place(resource: Resource) -> RepositoryPlace:
    return place_of(resource.spec["url"], resource.spec.get("region"))
