"""What a daemon refuses to start with, and what it leaves unloaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from config import schema
from config.load import load
from config.schema import ConfigError
from odfd.daemon import main as daemon
from odfd.node.settings_check import CHECKS, check_components

# ``odfd config check`` refuses what ``odfd run`` refuses, with the setting and where it was made.

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


# Modules that a daemon never uses, or not before it works with rows, stay out of its memory at the start.

LOADED = """
import sys
from odfd.daemon.unused_modules import lean_imports
with lean_imports():
    from odfd.daemon import wiring
from odfd.daemon.main import _services
from chain.struct_types import learn_struct_types
_services(), learn_struct_types()
from odfd.network.membership import load_libp2p
load_libp2p()
import p2p.driver.replication, p2p.host.host
print(*sorted({names} & set(sys.modules)), "httpx" in sys.modules, "libp2p" in sys.modules)
"""
NEVER = {
    "rich",
    "click",
    "pygments",
    "dns",
    "charset_normalizer",
    "httpx._main",
    "greenlet",
    "pycparser",
    "duckdb",
    "pyspark",
}
LATER = {"numpy", "pyarrow", "pyarrow.lib", "pyarrow.fs", "pandas", "grpc"}


@pytest.mark.slow
def test_a_daemon_with_a_host_loads_none_of_them() -> None:
    """A stray ``import pyarrow`` at the top of a module costs an idle node 46 MiB: take it from chain.libraries."""
    program = LOADED.replace("{names}", repr(NEVER | LATER))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.slow
def test_arrow_works_and_finds_no_pandas() -> None:
    """Without the refusal, the first ``pa.array`` of a process imports pandas if it is installed, as it is here."""
    program = """
import sys
from odfd.daemon.unused_modules import refuse_pandas
refuse_pandas()
from chain.libraries import np, pa, pc
print(pa.array([1, None]).null_count, pc.sum(pa.array(np.arange(3))), pa.table({"a": [1]}).to_pylist())
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 3 [{'a': 1}]", "False"]
