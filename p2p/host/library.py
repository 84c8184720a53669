"""Prepares the import of libp2p: checks its version, and lets it load only what a host uses.

``import libp2p`` loads each of its transports, discoveries and record stores: 1,400 modules, 0.7 s of processor and
90 MB for a process. ``p2p.host.hardening`` assembles a host from half of them. So two things are put in ``sys.modules``
before its first import:

* packages whose initialiser is not run (``PACKAGES``), because it imports what is beside the module that is wanted;
* stand-ins (``ABSENT``) for modules that are mentioned and never used. Whoever uses one is told why it is not there.

One stand-in is for a package that cannot always be installed: ``fastecdsa`` (C code without wheels, only for ECDSA host
keys and the secio transport).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
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
"""Packages of libp2p whose initialisers are not run, parents first."""


@dataclass(frozen=True)
class Part:
    """Modules that libp2p imports and a host of ours does not use."""

    rule: str
    reason: str
    """Why it is not there, for whoever uses it all the same."""
    hint: str
    modules: Mapping[str, tuple[str, ...]]
    """Each module, parents first, with the names that others import from it."""
    instances: bool = False
    """Whether the library makes instances, of which it asks nothing."""


ECDSA: Final = Part(
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
    Part(
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
    Part(
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
    Part(
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
    Part(
        "system-names",
        "the library's resolver of names is not used",
        "p2p.host resolves names by the system",
        {"multiaddr.resolvers": ("DNSResolver",)},
        instances=True,
    ),
)


def prepare() -> None:
    """Idempotent; without effect where libp2p was imported before. Raises UnsupportedLibrary."""
    check_version()
    if "libp2p" in sys.modules:
        return
    import multiaddr  # noqa: F401  the parent of a stand-in

    _skip_initialisers()
    for part in ABSENT:
        stand_in(part)


def restore() -> None:
    """Undo ``prepare`` but for fastecdsa, before the first import: a process may measure the library as it is."""
    for name in (*PACKAGES, *(module for part in ABSENT if part is not ECDSA for module in part.modules)):
        sys.modules.pop(name, None)


def check_version() -> None:
    """The cures name internals of one version. Raises UnsupportedLibrary for any other."""
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


def _skip_initialisers() -> None:
    found = importlib.util.find_spec("libp2p")
    places = found.submodule_search_locations if found else None
    if not places:
        raise UnsupportedLibrary(
            "libp2p is not a package", rule="libp2p-version", hint=f"pip install libp2p=={SUPPORTED}"
        )
    for name in PACKAGES:
        _register(_package(name, Path(places[0], *name.split(".")[1:])))


def _package(name: str, folder: Path) -> ModuleType:
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return importlib.util.module_from_spec(spec)


def stand_in(part: Part) -> None:
    """Register modules in the place of those of ``part``."""
    for name, members in part.modules.items():
        module = ModuleType(name)
        module.__path__ = []
        for member in members:
            setattr(module, member, _refusal(f"{name}.{member}", part))
        _register(module)


def _register(module: ModuleType) -> None:
    sys.modules[module.__name__] = module
    parent, _, child = module.__name__.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


class _Refusing(type):
    """The type of a name that stands in: it may be mentioned, in annotations and ``except``, and not used."""

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


def _refusal(name: str, part: Part) -> type:
    members = {"rule": part.rule, "reason": part.reason, "hint": part.hint, "instances": part.instances}
    return _Refusing(name, (Exception,), members)
