"""Numbers, defaults and settings that pages name are those of the code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import pytest

from chain.statements.card import MAX_SAMPLE
from chain.store.objects import SMALL
from config import schema
from engines.flight.messages import MAX_MESSAGE
from engines.flight.server import MAX_BATCH
from engines.flight.service import HELD_SECONDS, MOST_STATEMENTS
from engines.spark.provenance.question import MAX_ROWS
from engines.spark.provenance.table_mode import MAX_LIVED
from odfd.api.graphql_limits import MAX_ALIASES, MAX_COST, MAX_DEPTH, MAX_SOURCE, MAX_TOKENS
from odfd.api.resource_operations import WAIT_SECONDS
from odfd.control import remote
from odfd.control.wire.node import BackupRequest
from odfd.errors import ExitCode
from odfd.mirrors.first_contact import ENOUGH
from odfd.obs import log_lines
from odfd.page.sessions import SESSION_SECONDS, TOKEN_SECONDS
from odfd.queries.askers import Crowd
from odfd.services.lineage.trace import MAX_FOLLOWED, MAX_TOLD
from odfd.services.network.mirror_wait import PATIENCE_SECONDS
from odfd.services.queries.fair_turns import WAITING
from odfd.services.resources.watches import WATCHES
from p2p.driver.namespaces import MAX_NETWORKS
from p2p.machines.dial_order import HEAD_START, MAX_TRIED
from p2p.machines.relay import RelayLimits

DOCS: Final = Path(__file__).parents[2] / "docs"
TOML: Final = re.compile(r"^ *```(?:toml|file \S+\.toml)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
DEFAULT: Final = re.compile(r"`([a-z0-9]+(?:\.[a-z0-9-]+)+)` \(default ([^)]+)\)")
RELAY: Final = RelayLimits()
SAID: Final = (
    ("how-to/backup.md", f"objects up to {SMALL >> 10} KiB"),
    ("how-to/backup.md", f"`--keep N` (default {BackupRequest(to='/').keep})"),
    ("how-to/flight.md", f"| {MAX_MESSAGE >> 20} MiB |"),
    ("how-to/flight.md", f"| {MAX_BATCH >> 20} MiB, unless"),
    ("how-to/flight.md", f"| {MOST_STATEMENTS}, for an hour |"),
    ("how-to/flight.md", f"| {HELD_SECONDS:g} seconds; then"),
    ("how-to/http.md", f"{WAITING} more wait"),
    ("how-to/http.md", f"a running one has {Crowd.STRANGERS.value:g} seconds"),
    ("how-to/join.md", f"in {MAX_NETWORKS} networks at a time"),
    ("how-to/join.md", f"serves it within {PATIENCE_SECONDS:g} seconds"),
    ("how-to/join.md", f"peers in {ENOUGH} or more IP subnets"),
    ("how-to/operate.md", f"the last {log_lines.MOST:,} lines, at most {log_lines.MOST_BYTES >> 20} MiB"),
    ("how-to/page.md", f"valid once, for {TOKEN_SECONDS:g} seconds"),
    ("how-to/page.md", f"after {SESSION_SECONDS / 3600:g} hours without a request"),
    ("how-to/publish.md", f"`--sample N` (at most {MAX_SAMPLE})"),
    ("how-to/reach.md", f"at most {RELAY.reservations} peers and {RELAY.circuits} circuits"),
    ("how-to/reach.md", f"after {RELAY.circuit.seconds / 3600:g} hours, or after {RELAY.circuit.data >> 30} GiB"),
    ("how-to/reach.md", f"the next address after {HEAD_START:g} s"),
    ("how-to/reach.md", f"it dials at most {MAX_TRIED}."),
    ("reference/api.md", f"an apply after {WAIT_SECONDS:g} seconds"),
    ("reference/api.md", f"At most {WATCHES} watches"),
    (
        "reference/api.md",
        f"{MAX_SOURCE >> 10} KiB, {MAX_TOKENS:,} tokens, {MAX_DEPTH} levels, {MAX_ALIASES} aliases"
        f" and {MAX_COST:,} values",
    ),
    ("reference/roles.md", f"at most {remote.AT_ONCE} requests at a time"),
    ("explanation/provenance.md", f"| {MAX_FOLLOWED:,}, and none after {MAX_TOLD:,} listed rows"),
    ("explanation/provenance.md", f"| {MAX_ROWS:,} (`provenance-size`)"),
    ("explanation/provenance.md", f"| {MAX_LIVED:,} (`provenance-size`)"),
)


def pages() -> Iterator[tuple[str, str]]:
    """Pages for users: the specification shows parts of a file of settings."""
    for path in sorted(DOCS.rglob("*.md")):
        if path.relative_to(DOCS).parts[0] not in ("adr", "spec"):
            yield path.relative_to(DOCS).as_posix(), path.read_text()


def flat(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def wrong_settings(text: str) -> Iterator[str]:
    """What blocks of settings of a page name, and the node does not take."""
    keys = {key.name: key for key in schema.every()}
    for block in TOML.findall(text):
        for name, value in flat(tomllib.loads(re.sub(r"(?m)^ +", "", block))):
            if name not in keys:
                yield f"there is no setting {name}"
            elif "…" not in str(value) and (problem := schema.accept(keys[name], value, "page")[1]) is not None:
                yield str(problem)


def wrong_defaults(text: str) -> Iterator[str]:
    defaults = {key.name: key.default for key in schema.every()}
    for name, value in DEFAULT.findall(text):
        if str(defaults.get(name, "no such setting")) != value:
            yield f"{name}: {value}, where the code says {defaults.get(name)}"


@pytest.mark.parametrize(("page", "text"), SAID, ids=lambda value: value[:40])
def test_a_page_says_the_number_of_the_code(page: str, text: str) -> None:
    assert text in " ".join((DOCS / page).read_text().split())


def test_settings_that_pages_show_are_taken() -> None:
    assert not [f"{page}: {each}" for page, text in pages() for each in wrong_settings(text)]
    assert list(wrong_settings("```toml\n[p2p]\nupnp = true\n```\n")) == ["there is no setting p2p.upnp"]


def test_defaults_that_pages_name_are_those_of_the_code() -> None:
    assert not [f"{page}: {each}" for page, text in pages() for each in wrong_defaults(text)]
    assert list(wrong_defaults("`query.seconds` (default 1)"))


def test_each_exit_code_has_a_row() -> None:
    text = (DOCS / "how-to" / "troubleshoot.md").read_text()
    codes: type[IntEnum] = ExitCode
    assert sorted(map(int, re.findall(r"(?m)^\| (\d+) \|", text))) == sorted(codes)
