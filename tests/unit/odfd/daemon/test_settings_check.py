"""``odfd config check`` refuses what ``odfd run`` refuses, with the setting and where it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import schema
from config.load import load
from config.schema import ConfigError
from odfd.daemon import main as daemon
from odfd.node.settings_check import CHECKS, check_components

REFUSED = {
    "p2p.listen": ['[p2p]\nlisten = ["/ip4/0.0.0.0/udp/4150/quic-v1"]', '[p2p]\nlisten = ["/dns4/x.example/tcp/4150"]',
                   '[p2p]\nlisten = ["/ip4/0.0.0.0/tcp/99999"]'],
    "p2p.announce": ['[p2p]\nannounce = ["/ip4/192.0.2.1/udp/1"]'],
    "p2p.relays": ['[p2p]\nrelays = ["/ip4/192.0.2.1/tcp/1/p2p/x"]'],
    "p2p.bootstrap": ['[p2p]\nnetwork = "demo"\nbootstrap = ["/ip4/192.0.2.1/tcp/1/p2p/x"]',
                      '[p2p]\nnetwork = "a b"'],
    "p2p.inside": ['[p2p]\ninside = ["1.2.3"]'],
    "webhooks.inside": ['[webhooks]\ninside = ["x"]'],
    "http.listen": ['[http]\nlisten = ["127.0.0.1:99999"]'],
    "http.ui": ['[http]\nui = "127.0.0.1:99999"'],
    "metrics.listen": ['[metrics]\nlisten = ["127.0.0.1:99999"]'],
    "api.listen": ['[api]\nlisten = ["127.0.0.1:99999"]'],
    "flight.listen": ['[flight]\nlisten = ["127.0.0.1:99999"]'],
    "http.ui-certificate": ['[http]\nui-certificate = "/none"\nui-key = "/none"'],
    "api.certificate": ['[api]\ncertificate = "/none"\nkey = "/none"'],
    "flight.certificate": ['[flight]\ncertificate = "/none"\nkey = "/none"'],
    "http.ui-tokens": ['[http]\nui-tokens = "/none"'],
    "flight.tokens": ['[flight]\ntokens = "/none"'],
    "policy.network-key": ['[policy]\nnetwork-key = "did:key:zzz"'],
    "policy.use": ['[policy]\nuse = "data & bogus"'],
    "ipfs.api": ['[ipfs]\napi = "ftp://127.0.0.1"'],
}  # fmt: skip


def test_every_check_has_a_case() -> None:
    assert REFUSED.keys() == {check.setting for check in CHECKS} <= {key.name for key in schema.every()}


@pytest.mark.parametrize(("setting", "text"), [(name, text) for name, texts in REFUSED.items() for text in texts])
def test_what_a_part_cannot_take_is_refused_with_its_place(
    setting: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text(text)
    loaded = load({"HOME": str(tmp_path)}, file)
    with pytest.raises(ConfigError) as refused:
        check_components(loaded)
    (problem,) = refused.value.problems
    assert problem.place == loaded.origins.get(setting, f"setting {setting}")
    assert problem.hint
    assert daemon.main(["config", "check", "--config", str(file)]) == 5
    assert problem.message in capsys.readouterr().err


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text('[p2p]\nlisten = ["/ip4/0.0.0.0/udp/1"]\ninside = ["x"]\n[webhooks]\ninside = ["y"]\n')
    with pytest.raises(ConfigError) as refused:
        check_components(load({"HOME": str(tmp_path)}, file))
    assert [problem.place for problem in refused.value.problems] == [f"{file}:{line}" for line in (2, 3, 5)]


def test_defaults_are_what_all_parts_take(tmp_path: Path) -> None:
    loaded = load({"HOME": str(tmp_path)})
    assert check_components(loaded) is loaded
