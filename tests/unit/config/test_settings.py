"""One model, one default file, all mistakes at once."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import render, schema
from config.load import line_numbers, load
from config.model import Group, Ipfs, Settings
from config.render import template
from config.schema import ConfigError

HOME = {"HOME": "/home/alice"}


def flat(table: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def problems(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    file = tmp_path / "odfd.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(HOME | (environ or {}), file)
    return [str(problem).replace(str(tmp_path) + "/", "") for problem in caught.value.problems]


def test_a_new_file_has_every_setting_and_changes_none(tmp_path: Path) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text(template({}))
    nothing = load(HOME | {"XDG_CONFIG_HOME": "/nowhere"}).settings
    assert load(HOME, file).settings == nothing
    # Without "#" before their names, all settings are said: each its default, or an example that it takes.
    said = re.sub(r"(?m)^#(?=[a-z-]+ = )", "", template({}))
    assert set(flat(tomllib.loads(said))) == {key.name for key in schema.every()}
    file.write_text(said)
    found = load(HOME, file).settings
    for key in schema.every():
        expected = key.about.example if key.default is None else schema.get(nothing, key.path)
        assert expected is not None, key.name
        assert schema.get(found, key.path) in (expected, key.default), key.name


@pytest.mark.slow
@given(st.text(max_size=20), st.booleans(), st.lists(st.text(max_size=5), max_size=3).map(tuple))
def test_what_is_chosen_for_a_new_file_is_in_force(name: str, mdns: bool, folders: tuple[str, ...]) -> None:
    chosen = {"node.name": name, "p2p.mdns": mdns, "ingest.folders": folders}
    document = tomllib.loads(template(chosen))
    assert flat(document) == chosen | {"ingest.folders": list(folders)}


def test_every_setting_has_a_reason_and_numbers_have_bounds() -> None:
    variables = [key.variable for key in schema.every()]
    assert len(variables) == len(set(variables))
    for key in schema.every():
        assert key.about.why, key.name
        if key.type in (int, float):
            assert key.about.low is not None, key.name


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('["127.0.0.1:80", "[::]:80"]', ("127.0.0.1:80", "[::]:80")),
        ("[]", ()),
        ("", ()),
        ("127.0.0.1:80,[::]:80", ("127.0.0.1:80", "[::]:80")),
        ("[::]:80", ("[::]:80",)),
    ],
)
def test_a_list_in_a_variable_is_as_in_a_file_or_with_commas(tmp_path: Path, text: str, taken: tuple[str, ...]) -> None:
    assert load(HOME | {"ODFD_HTTP_LISTEN": text}, None).settings.http.listen == taken


def test_a_broken_list_in_a_variable_is_told_as_it_stands() -> None:
    with pytest.raises(ConfigError) as caught:
        load(HOME | {"ODFD_HTTP_LISTEN": '["127.0.0.1:80]'}, None)
    assert '["127.0.0.1:80]' in caught.value.problems[0].message


def test_order_of_power(tmp_path: Path) -> None:
    file = tmp_path / "odfd.toml"
    file.write_text('[node]\nname = "file"\n[engine]\ncores = 2\n[p2p]\nmax-peers = 9\n')
    environ = HOME | {"ODFD_ENGINE_CORES": "3", "ODFD_P2P_LISTEN": "/ip4/1.2.3.4/tcp/1, /ip6/::/tcp/1"}
    loaded = load(environ, file, {"node.state-dir": "/srv/a", "control.socket": None})
    settings = loaded.settings
    assert (settings.node.name, settings.engine.cores, settings.p2p.max_peers) == ("file", 3, 9)
    assert settings.p2p.listen == ("/ip4/1.2.3.4/tcp/1", "/ip6/::/tcp/1")
    assert (settings.node.state_dir, settings.control.socket) == ("/srv/a", "/srv/a/control.sock")
    assert loaded.origins["node.name"] == f"{file}:2"
    assert loaded.origins["engine.cores"] == "environment ODFD_ENGINE_CORES"


def test_places_and_sandbox_of_a_laptop_and_of_a_service() -> None:
    laptop = load(HOME | {"XDG_RUNTIME_DIR": "/run/user/7"}).settings
    assert laptop.node.state_dir == "/home/alice/.local/state/odfd"
    assert laptop.control.socket == "/run/user/7/odfd/control.sock"
    assert laptop.engine.sandbox == "none"
    service = load({"STATE_DIRECTORY": "/var/lib/odfd", "RUNTIME_DIRECTORY": "/run/odfd"}).settings
    assert service.node.state_dir == "/var/lib/odfd"
    assert service.control.socket == "/run/odfd/control.sock"
    assert service.engine.sandbox == "host"


def test_all_mistakes_at_once_with_place_and_suggestion(tmp_path: Path) -> None:
    text = '[node]\nnam = "x"\nlog-level = "loud"\n\n[p2p]\nmax-peers = "many"\nmax-streams = 1\n[polcy]\nuse = 1\n'
    found = problems(tmp_path, text, {"ODFD_P2P_LISTN": "x", "ODFD_ENGINE_CORES": "two"})
    assert found[:5] == [
        "odfd.toml:2: there is no setting node.nam  (did you mean node.name?)",
        "odfd.toml:3: node.log-level is one of debug, info, warning, error, not 'loud'",
        "odfd.toml:6: p2p.max-peers is a whole number, not 'many'"
        "  (most connections at once; each costs about 1 MB of buffers)",
        "odfd.toml:7: p2p.max-streams is from 8 to 4096, not 1",
        "odfd.toml:8: there is no table polcy  (did you mean policy?)",
    ]
    assert any("ODFD_ENGINE_CORES: engine.cores is a whole number, not 'two'" in line for line in found)
    assert any("ODFD_P2P_LISTN" in line and "ODFD_P2P_LISTEN" in line for line in found)
    assert len(found) == 7


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[node\n", "odfd.toml:1: is not TOML"),
        ("[node]\nname = x\n", "odfd.toml:2: is not TOML"),
        ("node = 1\n", "odfd.toml:1: [node] is a table, not 1"),
        ("[engine]\ncores = true\n", "not true"),
        ("[engine]\nidle-seconds = nan\n", "engine.idle-seconds is at least 1 s, not nan"),
        ("[p2p]\nlisten = [1]\n", "a list of texts"),
        ("[flight]\nlisten = '127.0.0.1:0'\n", "a list of texts, not '127.0.0.1:0': write ['127.0.0.1:0']"),
        ("[policy.validators]\ngroups = [{nam = 'a', keys = []}]\n", "a list of {name"),
        ("[policy.validators]\ngroups = [{name = 'a', keys = []}]\n", "'a' has no keys"),
        ("[policy.validators]\ngroups = [{name='a',keys=['k']},{name='b',keys=['k']}]\n", "the key k twice"),
        ("[policy]\nserve = 'data & attested:1'\n", "no validator's would count"),
        ("[p2p]\nbootstrap = ['/ip4/1.2.3.4/tcp/1']\n", "peers of no network"),
        ("[p2p]\nrelays = ['/ip4/1.2.3.4/tcp/1']\n", "address of a relay names its peer"),
        ("[p2p]\nnetwork = 'x'\nbootstrap = ['/ip4/1.2.3.4/tcp/1']\n", "a bootstrap address names its peer"),
        ("[p2p]\nlisten = ['0.0.0.0:4150']\n", "not a multiaddr"),
        ("[engine]\ncluster-address = '10.0.0.7'\n", "odfd.toml:2: the engine has settings for a cluster"),
        ("[engine]\ncluster-settings = '/etc/c.conf'\n", "set engine.master too"),
        ("[engine]\nmaster = 'yarn'\nsandbox = 'host'\n", "odfd.toml:2: executors of the cluster yarn need the net"),
        ("[traces]\nendpoint = '127.0.0.1:4318'\n", "not the address of a collector"),
        ("[traces]\nendpoint = 'https://me:secret@host/'\n", "without a user, a password"),
        ("[traces]\nendpoint = 'http://127.host.example/'\n", "127.host.example is beyond this machine"),
        (f"[control]\nsocket = '/{'a' * 120}'\n", "odfd.toml:2: the socket path has 121 bytes"),
    ],
)
def test_each_mistake_is_told(tmp_path: Path, text: str, told: str) -> None:
    assert told in "\n".join(problems(tmp_path, text))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for file in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(HOME, file)
    (tmp_path / "b.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(HOME, tmp_path / "b.toml")


names = st.text(min_size=1, max_size=20)


@pytest.mark.slow
@given(
    st.builds(Group, names, st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)),
    st.text(max_size=30),
    st.floats(1, 1e6),
    st.booleans(),
)
def test_what_is_rendered_loads_to_the_same(group: Group, name: str, idle: float, attest: bool) -> None:
    base = load(HOME).settings
    policy = dataclasses.replace(
        base.policy,
        validators=dataclasses.replace(base.policy.validators, groups=(group,)),
        publish=dataclasses.replace(base.policy.publish, attest=attest),
    )
    settings = dataclasses.replace(
        base,
        node=dataclasses.replace(base.node, name=name),
        engine=dataclasses.replace(base.engine, idle_seconds=idle),
        policy=policy,
    )
    document = flat(tomllib.loads(render.toml(settings, {})))
    for key in schema.every():
        value = schema.get(settings, key.path)
        if value is None:
            assert key.name not in document
        else:
            assert schema.accept(key, document[key.name], "x") == (value, None)


def test_secrets_are_masked() -> None:
    settings = Settings(ipfs=Ipfs(token="hush"))
    assert "hush" not in render.toml(settings, {}) + json.dumps(render.plain(settings))
    assert render.MASK in render.toml(settings, {})


def test_the_json_schema_names_every_setting() -> None:
    tree = render.json_schema()
    for key in schema.every():
        node = tree
        for step in key.name.split("."):
            assert node["additionalProperties"] is False
            node = node["properties"][step]
        assert node["description"].startswith(key.about.why)


@pytest.mark.slow
@given(st.text(max_size=300))
def test_any_text_has_line_numbers(text: str) -> None:
    assert all(1 <= line <= len(text.splitlines()) for line in line_numbers(text).values())


def test_lines_of_nested_keys() -> None:
    text = '# c\n[policy]\nuse = "data"\nvalidators.f = 2\n\n[ policy . fresh ]  # x\n"max-stale" = "1d"\n'
    found = line_numbers(text)
    assert (found["policy.use"], found["policy.validators.f"], found["policy.fresh.max-stale"]) == (3, 4, 7)


def test_a_secret_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    (told,) = problems(tmp_path, "[ipfs]\ntoken = 12345\n")
    assert "ipfs.token is a text" in told
    assert "12345" not in told


@pytest.mark.parametrize("entry", ["p2p", "p2p=loud", "=debug", "P2P=debug", "a..b=info", "p2p=debug=info"])
def test_levels_of_parts_name_a_part_and_a_level(tmp_path: Path, entry: str) -> None:
    assert problems(tmp_path, f'[node]\nlog-levels = ["odfd.mirrors=debug", "{entry}"]\n') == [
        f"odfd.toml:2: node.log-levels: '{entry}' is no part with a level, one of debug, info, warning, error"
        "  (write it like p2p.driver=debug)"
    ]


def test_settings_that_differ_are_named() -> None:
    before = Settings()
    after = dataclasses.replace(before, node=dataclasses.replace(before.node, name="other"))
    assert schema.changed(before, before) == ()
    assert schema.changed(before, after) == ("node.name",)


def test_a_mistake_of_a_value_names_its_line_and_its_setting(tmp_path: Path) -> None:
    """Also one that is found by comparing settings, or by reading the text of one."""
    file = tmp_path / "a.toml"
    file.write_text('[p2p]\nlisten = ["nowhere"]\n[http]\nquery = true\n')
    with pytest.raises(ConfigError) as told:
        load({}, file)
    assert [(each.place, each.message.partition(":")[0]) for each in told.value.problems] == [
        (f"{file}:2", "p2p.listen"),
        (f"{file}:4", "http.query"),
    ]
