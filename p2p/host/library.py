"""Prepares the import of libp2p: checks that its version is the one that was hardened, and that it can be imported.

``libp2p.crypto.ecc`` imports ``fastecdsa`` (C code without wheels, only for ECDSA host keys and the secio transport).
Our keys are Ed25519 and secio is off, so a stand-in takes its name; whoever calls into it is told why it is not there.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Final, NoReturn

from p2p.errors import UnsupportedLibrary

SUPPORTED: Final = "0.8.1"
ABSENT: Final = {
    "fastecdsa": (),
    "fastecdsa.curve": ("Curve", "P256"),
    "fastecdsa.keys": ("gen_private_key", "get_public_key"),
    "fastecdsa.point": ("Point",),
    "fastecdsa.encoding": (),
    "fastecdsa.encoding.sec1": ("SEC1Encoder",),
    "fastecdsa.encoding.util": ("int_bytelen",),
}
"""Modules that libp2p imports, and the names it takes from them."""


def prepare() -> None:
    """Idempotent. Raises UnsupportedLibrary."""
    check_version()
    if "fastecdsa" not in sys.modules and importlib.util.find_spec("fastecdsa") is None:
        stand_in()


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


def stand_in() -> None:
    """Register modules in the place of fastecdsa."""
    for name, members in ABSENT.items():
        module = ModuleType(name)
        for member in members:
            setattr(module, member, _Refusal(f"{name}.{member}"))
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class _Refusal:
    """A name of fastecdsa. It may be mentioned (in annotations), not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> NoReturn:
        raise UnsupportedLibrary(
            f"{self._name} is not installed: ECDSA keys and secio are not supported",
            rule="ed25519-only",
            hint="the peer must use an Ed25519 key and noise",
        )

    def __call__(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._refuse()

    def __or__(self, _: object) -> _Refusal:
        return self

    __ror__ = __or__
