"""Makes libp2p load only the modules that a host uses, after a check of its version.

``import libp2p`` loads all of its transports, discoveries and record stores: 1,400 modules, 0.7 s of processor time and
90 MB for a process. ``p2p.host.hardening`` assembles a host from half of them. So a finder on ``sys.meta_path`` handles
two sets of names, when they are imported and not before:

* packages whose ``__init__`` is not run (``PACKAGES``), because it imports more than the module that is wanted;
* modules that are mentioned and never used (``ABSENT``). Using a name of one raises an error that says why.

One of the second set cannot always be installed: ``fastecdsa`` (C code without wheels, only for ECDSA host keys and the
secio transport).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, Final, NoReturn

from p2p.errors import UnsupportedLibrary

SUPPORTED: Final = "0.8.1"
PACKAGES: Final = (
    "libp2p",
    "libp2p.identity",
    "libp2p.relay",
    "libp2p.relay.circuit_v2",
    "libp2p.security",
    "libp2p.transport",
)
"""Packages of libp2p whose ``__init__`` is not run."""


@dataclass(frozen=True)
class LibraryPart:
    """A group of modules that libp2p imports and that our host does not use."""

    rule: str
    reason: str
    """The reason why it is absent, for the error that using it raises."""
    hint: str
    modules: Mapping[str, tuple[str, ...]]
    """Each module with the names that others import from it."""
    instances: bool = False
    """Whether the library makes instances of these names, without using them."""


ECDSA: Final = LibraryPart(
    "ed25519-only",
    "ECDSA keys and secio are not supported",
    "the peer must use an Ed25519 key and noise",
    {
        "fastecdsa": (),
        "fastecdsa.curve": ("Curve", "P256"),
        "fastecdsa.keys": ("gen_private_key", "get_public_key"),
        "fastecdsa.point": ("Point",),
        "fastecdsa.encoding": (),
        "fastecdsa.encoding.sec1": ("SEC1Encoder",),
        "fastecdsa.encoding.util": ("int_bytelen",),
    },
)
ABSENT: Final = (
    ECDSA,
    LibraryPart(
        "tcp-only",
        "QUIC is not a transport of this host",
        "dial the TCP address of the peer",
        {
            "libp2p.transport.quic": (),
            "libp2p.transport.quic.config": ("QUICTransportConfig",),
            "libp2p.transport.quic.exceptions": ("QUICStreamClosedError", "QUICStreamResetError"),
            "libp2p.transport.quic.stream": ("QUICStream",),
        },
    ),
    LibraryPart(
        "noise-only",
        "TLS does not secure connections of this host",
        "the peer must offer noise",
        {
            "libp2p.security.tls": (),
            "libp2p.security.tls.autotls": (),
            "libp2p.security.tls.autotls.acme": ("ACMEClient", "compute_b36_peer_id"),
            "libp2p.security.tls.autotls.broker": ("BrokerClient",),
            "libp2p.relay.circuit_v2.nat": ("is_private_ip",),
        },
    ),
    LibraryPart(
        "own-discovery",
        "the library's discovery is not used",
        "multicast on the LAN and presences find peers",
        {
            "libp2p.discovery": (),
            "libp2p.discovery.bootstrap": (),
            "libp2p.discovery.bootstrap.bootstrap": ("BootstrapDiscovery",),
            "libp2p.discovery.mdns": (),
            "libp2p.discovery.mdns.mdns": ("MDNSDiscovery", "create_mdns_discovery"),
            "libp2p.discovery.upnp": (),
            "libp2p.discovery.upnp.upnp": ("UpnpManager",),
        },
    ),
    LibraryPart(
        "system-names",
        "the library's resolver of names is not used",
        "p2p.host resolves names by the system",
        {"multiaddr.resolvers": ("DNSResolver",)},
        instances=True,
    ),
)


def prepare() -> None:
    """Installs the finder; may be called again. No effect on modules imported before. Raises UnsupportedLibrary."""
    check_version()
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def restore() -> None:
    """Removes the finder, before the first import, so that a process can measure the library as it is."""
    sys.meta_path.remove(FINDER)
    sys.meta_path.insert(0, _Finder((), (ECDSA,)))


def check_version() -> None:
    """Raises UnsupportedLibrary unless the version is the one whose internals the corrections name."""
    try:
        found = version("libp2p")
    except PackageNotFoundError:
        found = "none"
    if found != SUPPORTED:
        raise UnsupportedLibrary(
            f"py-libp2p {found} is installed, and odfd's cures are for {SUPPORTED}",
            rule="libp2p-version",
            hint=f"pip install libp2p=={SUPPORTED}, or go through p2p/host/hardening.py for the new version",
        )


class _Finder(MetaPathFinder):
    """Finds packages without running their ``__init__``, and stand-ins for absent modules."""

    def __init__(self, packages: Sequence[str], absent: Sequence[LibraryPart]) -> None:
        self._packages = frozenset(packages)
        self._absent = {name: part for part in absent for name in part.modules}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if part := self._absent.get(name):
            return ModuleSpec(name, _StandIn(part), is_package=True)
        if name not in self._packages:
            return None
        found = PathFinder.find_spec(name, path, target)
        return found and _namespace(found)


def _namespace(found: ModuleSpec) -> ModuleSpec:
    """Returns a package as one without ``__init__``: a spec without a loader, so that nothing is run."""
    spec = ModuleSpec(found.name, None, is_package=True)
    spec.submodule_search_locations = found.submodule_search_locations
    return spec


class _StandIn(Loader):
    """Makes a stand-in for an absent module, with the names that others import from it."""

    def __init__(self, part: LibraryPart) -> None:
        self._part = part

    def exec_module(self, module: ModuleType) -> None:
        for member in self._part.modules[module.__name__]:
            setattr(module, member, _refusal(f"{module.__name__}.{member}", self._part))


class _Refusing(type):
    """The type of stand-in names: they may appear in annotations and ``except``, but raise when used."""

    rule: str
    reason: str
    hint: str
    instances: bool

    def _refuse(cls) -> NoReturn:
        raise UnsupportedLibrary(f"{cls.__name__} is not here: {cls.reason}", rule=cls.rule, hint=cls.hint)

    def __call__(cls, *arguments: object, **options: object) -> Any:
        if not cls.instances:
            cls._refuse()
        return super().__call__(*arguments, **options)

    def __getattr__(cls, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        cls._refuse()


def _refusal(name: str, part: LibraryPart) -> type:
    members = {"rule": part.rule, "reason": part.reason, "hint": part.hint, "instances": part.instances}
    return _Refusing(name, (Exception,), members)


FINDER: Final = _Finder(PACKAGES, ABSENT)
