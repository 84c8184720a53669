"""Checks settings with the functions by which the node's parts take them: ``odfd config check`` and ``run`` agree.

``config.check`` looks at settings alone. What only a part can judge, such as an address, a policy or a certificate, is
here, by the setting to which the answer belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from chain.errors import Fault, Invalid
from chain.ids import KeyDid
from config.check import ENDPOINT
from config.load import Loaded
from config.model import Settings
from config.schema import ConfigError, Key, Problem, every, get, opened_doors
from odfd.control.tokens import Tokens
from odfd.network.joined_networks import Network, check_network
from odfd.policy.policy import policy_of
from odfd.queries.doors import load_door
from odfd.runtime.http_server import parse_address
from odfd.runtime.tls import hosts_of, tls_context
from odfd.services.peers.host_options import checked_inside, checked_relay
from p2p.address import announced_address, listen_address


class Check(NamedTuple):
    """A check of what one part does with its settings."""

    setting: str
    """The setting that a message points to."""
    run: Callable[[Settings], object]
    """Raises Fault."""


def _each(take: Callable[[str], object], texts: Iterable[str]) -> None:
    for text in texts:
        take(text)


def _network(settings: Settings) -> None:
    p2p = settings.p2p
    if p2p.network:
        check_network(Network(name=p2p.network, bootstrap=p2p.bootstrap))


def _listens(key: Key) -> Check:
    def run(settings: Settings) -> None:
        value = get(settings, key.path)
        _each(partial(parse_address, setting=key.name), value if isinstance(value, tuple) else filter(None, (value,)))

    return Check(key.name, run)


def _certificate(key: Key) -> Check:
    """Checks a certificate with the key that is set beside it."""

    def run(settings: Settings) -> None:
        if certificate := get(settings, key.path):
            own_key = get(settings, (*key.path[:-1], key.path[-1].replace("certificate", "key")))
            tls_context(certificate, own_key, key.name, ("http/1.1",))
            hosts_of(certificate, key.name)

    return Check(key.name, run)


def _tokens(key: Key) -> Check:
    def run(settings: Settings) -> None:
        if path := get(settings, key.path):
            Tokens(Path(path), key.name, required=True).check()

    return Check(key.name, run)


def _kubo(settings: Settings) -> None:
    if settings.ipfs.api and ENDPOINT.fullmatch(settings.ipfs.api) is None:
        text = f"not the address of a Kubo: {settings.ipfs.api!r}"
        raise Invalid(text, rule="ipfs-api", hint="write it like http://127.0.0.1:5001")


def _door(name: str) -> Callable[[Settings], object]:
    return lambda _: load_door(name)


CHECKS: Final = (
    Check("p2p.listen", lambda settings: _each(listen_address, settings.p2p.listen or ())),
    Check("p2p.announce", lambda settings: _each(announced_address, settings.p2p.announce)),
    Check("p2p.relays", lambda settings: _each(checked_relay, settings.p2p.relays)),
    Check("p2p.bootstrap", _network),
    Check("p2p.inside", lambda settings: checked_inside("p2p", settings.p2p.inside or ())),
    Check("webhooks.inside", lambda settings: checked_inside("webhooks", settings.webhooks.inside)),
    *(_listens(key) for key in every() if key.path[-1] in ("listen", "ui") and key.table != "p2p"),
    *(_certificate(key) for key in every() if key.path[-1].endswith("certificate")),
    *(_tokens(key) for key in every() if key.path[-1].endswith("tokens")),
    Check(
        "policy.network-key", lambda settings: settings.policy.network_key and KeyDid.parse(settings.policy.network_key)
    ),
    Check("policy.use", lambda settings: policy_of(settings.policy)),
    Check("ipfs.api", _kubo),
)


def check_components(loaded: Loaded) -> Loaded:
    """Returns settings that all parts of a node can take. Raises ConfigError with every mistake."""
    problems = []
    doors = [Check(setting, _door(name)) for name, setting in opened_doors(loaded.settings).items()]
    for check in (*CHECKS, *doors):
        try:
            check.run(loaded.settings)
        except Fault as fault:
            place = loaded.origins.get(check.setting, f"setting {check.setting}")
            named = "" if check.setting in fault.message else f"{check.setting}: "
            problems.append(Problem(place, f"{named}{fault}", fault.hint))
    if problems:
        raise ConfigError(problems)
    return loaded
