"""Addresses to listen at are checked where settings are read, and told by the setting that names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.errors import Environment, Invalid
from config.load import load
from config.schema import ConfigError
from odfd.runtime.http_server import listening, parse_address, url_of


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "[::]:9464", "192.168.1.4:9464", "localhost:9464", "127.0.0.1"])
def test_figures_are_for_this_machine_alone(tmp_path: Path, address: str) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text(f'[metrics]\nlisten = ["{address}"]\n')
    with pytest.raises(ConfigError, match=r"metrics\.listen.*not an address of this machine alone"):
        load({"HOME": str(tmp_path)}, file)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.0.9:1", "[::1]:9464"])
def test_addresses_of_this_machine_are_taken(tmp_path: Path, address: str) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text(f'[metrics]\nlisten = ["{address}"]\n')
    assert load({"HOME": str(tmp_path)}, file).settings.metrics.listen == (address,)


def test_a_port_in_use_is_told_by_its_setting() -> None:
    with listening(parse_address("127.0.0.1:0", "metrics.listen")) as first:
        place = parse_address(url_of(first).removeprefix("http://"), "metrics.listen")
        with pytest.raises(Environment, match="in use") as caught:
            listening(place)
        assert caught.value.rule == "metrics-listen"
        assert "metrics.listen" in caught.value.hint
    with pytest.raises(Invalid, match="no address"):
        parse_address("127.0.0.1:70000", "http.listen")
