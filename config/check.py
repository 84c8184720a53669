"""Checks rules between several settings. Pure; reports all mistakes, and looks at nothing of the machine."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from config.log_levels import part_levels
from config.model import Engine, Http, Settings
from config.schema import Problem

HTTP_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9.]+):(\d{1,5})")
"""Matches an IP address and a port."""
ENDPOINT = re.compile(r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?(/[^\s?#@]*)?")
"""Matches a collector's URL. A user, a password or a query is refused, as settings are shown to people."""
MAX_SOCKET_PATH = 107
"""Most bytes of a unix socket's address on Linux."""


def cross(settings: Settings, origins: Mapping[str, str]) -> list[Problem]:
    """Checks rules between settings; ``origins`` maps a key to the place that a message points to."""

    def at(*names: str) -> str:
        return next((origins[name] for name in names if name in origins), f"setting {names[0]}")

    found = [*_places(settings, at("control.socket", "node.state-dir")), *_log(settings, at("node.log-levels")),
            *_network(settings, at("p2p.bootstrap")), *_card(settings),
            *_flight(settings), *_api(settings),
            *_cluster(settings, at("engine.master", "engine.cluster-settings", "engine.cluster-address")),
            *_trust(settings, at("policy.validators.groups", "policy.use", "policy.serve"))]  # fmt: skip
    return [_located(each, origins) for each in found]


def _located(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """Gives a problem of one setting the place where the setting was made, if it was made at all."""
    name = problem.place.removeprefix("setting ")
    if name == problem.place or name not in origins:
        return problem
    return Problem(origins[name], f"{name}: {problem.message}", problem.hint)


def _places(settings: Settings, place: str) -> Iterator[Problem]:
    size = len(settings.control.socket.encode())
    if size > MAX_SOCKET_PATH:
        yield Problem(
            place,
            f"the socket path has {size} bytes, and the kernel takes {MAX_SOCKET_PATH}: {settings.control.socket}",
            "name a shorter one: --socket /tmp/odfd.sock, or [control] socket",
        )


def _log(settings: Settings, place: str) -> Iterator[Problem]:
    try:
        part_levels(settings.node.log_levels)
    except ValueError as error:
        yield Problem(place, f"node.log-levels: {error}", "write it like p2p.driver=debug")


MAX_CARD_TEXTS = {"name": 64, "contact": 128, "about": 256}
"""Most characters of the texts on a node's card (``chain.statements.node_card``)."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"
"""Invisible characters that are allowed: Persian, Hindi and emoji are not written without them."""


def _card(settings: Settings) -> Iterator[Problem]:
    if not settings.p2p.card:
        return
    if not settings.node.name:
        yield Problem("setting p2p.card", "the node's card has no name to announce", "set node.name too")
    for name, most in MAX_CARD_TEXTS.items():
        text: str = getattr(settings.node, name)
        unseen = any(unicodedata.category(each) in _UNSEEN and each not in _JOINERS for each in text)
        if len(text) > most or unseen or text != " ".join(text.split()):
            yield Problem(f"setting node.{name}", f"it cannot be shown on the node's card: {text[:60]!r}",
                          f"one line of at most {most} characters, single spaces, no control characters")  # fmt: skip


def _network(settings: Settings, place: str) -> Iterator[Problem]:
    p2p = settings.p2p
    if p2p.bootstrap and not p2p.network:
        yield Problem(place, "p2p.bootstrap names peers of no network", 'set p2p.network = "NAME" too')
    for name, addresses in (
        ("listen", p2p.listen or ()),
        ("announce", p2p.announce),
        ("bootstrap", p2p.bootstrap),
        ("relays", p2p.relays),
    ):
        for address in addresses:
            if not address.startswith("/"):
                yield Problem(place if name == "bootstrap" else f"setting p2p.{name}", f"not a multiaddr: {address!r}",
                              "write it like /ip4/0.0.0.0/tcp/4150")  # fmt: skip
            elif name in ("bootstrap", "relays") and "/p2p/" not in address:
                what = "a bootstrap address" if name == "bootstrap" else "the address of a relay"
                yield Problem(place, f"{what} names its peer: {address!r}", "end it with /p2p/12D3Koo…")
    if settings.http.witness and not (settings.http.listen and settings.policy.publish.witness):
        yield Problem("setting http.witness", "there is no dataset to witness over HTTP, or no listener",
                      "set http.listen and policy.publish.witness too")  # fmt: skip
    if settings.http.prove and not settings.http.query:
        yield Problem("setting http.prove", "no queries are answered that could be proven", "set http.query too")
    if settings.http.push and not settings.http.listen:
        yield Problem("setting http.push", "there is nowhere to take pushes over HTTP", "set http.listen too")
    if settings.http.query and not settings.http.listen:
        yield Problem("setting http.query", "there is no listener to answer queries over HTTP", "set http.listen too")
    for address in settings.http.listen:
        if not HTTP_ADDRESS.fullmatch(address):
            yield Problem("setting http.listen", f"not an IP address and a port: {address!r}",
                          "write it like 127.0.0.1:8080 or [::]:8080")  # fmt: skip
    yield from _page(settings.http)
    yield from _traces(settings.traces.endpoint)
    for address in settings.metrics.listen:
        if not _is_loopback(address):
            yield Problem("setting metrics.listen", f"not an address of this machine alone: {address!r}",
                          "write it like 127.0.0.1:9464 or [::1]:9464; for others put a proxy with TLS and a password"
                          " before it")  # fmt: skip


def _traces(endpoint: str) -> Iterator[Problem]:
    if not endpoint:
        return
    found = ENDPOINT.fullmatch(endpoint)
    if found is None:
        yield Problem("setting traces.endpoint", "not the address of a collector: it is http:// or https://, a host and"
                      " a path, without a user, a password or a question", "write it like"
                      " http://127.0.0.1:4318/v1/traces")  # fmt: skip
    elif found["scheme"] == "http" and found["host"] != "localhost" and not _is_loopback(f"{found['host']}:1"):
        yield Problem("setting traces.endpoint", f"{found['host']} is beyond this machine, and http:// hides nothing",
                      "write https://, or run a collector here that passes traces on")  # fmt: skip


def _page(http: Http) -> Iterator[Problem]:
    if bool(http.ui_certificate) != bool(http.ui_key):
        yield Problem("setting http.ui-key", "TLS needs a certificate and its key", "set http.ui-certificate and it")
    if http.ui and not HTTP_ADDRESS.fullmatch(http.ui):
        yield Problem("setting http.ui", f"not an IP address and a port: {http.ui!r}", "write it like 127.0.0.1:7464")
    elif http.ui and not _is_loopback(http.ui) and not (http.ui_certificate and http.ui_tokens):
        yield Problem("setting http.ui", f"not an address of this machine alone: {http.ui!r}",
                      "set http.ui-certificate, http.ui-key and http.ui-tokens too; or write 127.0.0.1:7464, and from"
                      " elsewhere: ssh -L 7464:127.0.0.1:7464 HOST")  # fmt: skip


def _is_loopback(address: str) -> bool:
    found = HTTP_ADDRESS.fullmatch(address)
    try:
        return found is not None and ipaddress.ip_address(found[1].strip("[]")).is_loopback
    except ValueError:
        return False


def _flight(settings: Settings) -> Iterator[Problem]:
    flight = settings.flight
    for address in flight.listen:
        if not HTTP_ADDRESS.fullmatch(address):
            yield Problem("setting flight.listen", f"not an IP address and a port: {address!r}",
                          "write it like 127.0.0.1:50050 or [::1]:50050")  # fmt: skip
        elif not is_loopback(address) and not (flight.certificate and flight.tokens):
            yield Problem("setting flight.listen", f"{address} is reached from beyond this machine",
                          "set flight.certificate, flight.key and flight.tokens, or listen at 127.0.0.1")  # fmt: skip
    if bool(flight.certificate) != bool(flight.key):
        yield Problem("setting flight.key", "TLS needs a certificate and its key", "set flight.certificate and it")


def _api(settings: Settings) -> Iterator[Problem]:
    api = settings.api
    for address in api.listen:
        if not HTTP_ADDRESS.fullmatch(address):
            yield Problem("setting api.listen", f"not an IP address and a port: {address!r}",
                          "write it like 127.0.0.1:7465 or [::1]:7465")  # fmt: skip
        elif not _is_loopback(address) and not api.certificate:
            yield Problem("setting api.listen", f"{address} is reached from beyond this machine, and unencrypted",
                          "set api.certificate and api.key, or listen at 127.0.0.1")  # fmt: skip
    if bool(api.certificate) != bool(api.key):
        yield Problem("setting api.key", "TLS needs a certificate and its key", "set api.certificate and it")


def is_loopback(address: str) -> bool:
    """Whether an address with a port is reachable from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    return host == "::1" or host.startswith("127.")


def _cluster(settings: Settings, place: str) -> Iterator[Problem]:
    engine = settings.engine
    if not engine.master and (engine.cluster_settings or engine.cluster_address != Engine().cluster_address):
        yield Problem(place, "the engine has settings for a cluster, and runs on none", "set engine.master too")
    if engine.master and engine.sandbox not in ("auto", "none"):
        yield Problem(
            place,
            f"executors of the cluster {engine.master} need the network, which the sandbox level"
            f" {engine.sandbox!r} takes away",
            'accept engine.sandbox = "none": the cluster\'s own walls confine queries then; see odfctl docs cluster',
        )


def _repeated(values: Iterable[str]) -> list[str]:
    return [value for value, times in Counter(values).items() if times > 1]


def _trust(settings: Settings, place: str) -> Iterator[Problem]:
    policy = settings.policy
    for fact, what in (("attested", "attestations"), ("observed", "observations")):
        asks = [text for text in (policy.use, policy.serve) if text and fact in text]
        if asks and not policy.validators.groups:
            yield Problem(
                place,
                f"{asks[0]!r} counts {what}, and no validator's would count",
                'add [policy.validators] groups = [{name = "…", keys = ["did:key:…"]}]',
            )
    for kind, groups in (("validators", policy.validators.groups), ("witness", policy.witness.groups)):
        names = [group.name for group in groups]
        members = [key for group in groups for key in group.keys]
        for twice in _repeated(names):
            yield Problem(place, f"policy.{kind} has the group {twice!r} twice", "put their keys into one")
        for twice in _repeated(members):
            yield Problem(place, f"policy.{kind} has the key {twice} twice", "a key speaks for one group")
        for group in groups:
            if not group.keys:
                yield Problem(place, f"policy.{kind} group {group.name!r} has no keys", "it could never speak")
