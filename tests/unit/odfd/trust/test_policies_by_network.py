"""A dataset is judged by the policy of the network in which it was met; those of others only tighten it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chain.ids import KeyDid
from chain.statements.keys import SigningKey
from chain.statements.statement import RuleGroup, Rules
from odfd.policy.policy import KeyGroup, Policy, parse_expression
from odfd.policy.policy_merge import NetworkRules, PoliciesByNetwork, implies

KEYS = [SigningKey(bytes([number]) * 32).did for number in range(1, 7)]
STRICT, LAX, OTHER = (SigningKey(name * 32).did for name in (b"s", b"l", b"o"))
OWN = Policy(
    use=parse_expression("data"), serve=parse_expression("chain"), groups=(KeyGroup("mine", frozenset(KEYS[:1])),)
)
GROUPS = tuple(RuleGroup(name=f"g{number}", keys=(KEYS[number],)) for number in (1, 2, 3))
RULES: dict[KeyDid, NetworkRules] = {
    STRICT: (Rules(use="data & attested:2", groups=GROUPS, f=1), [Rules(max_stale="1d")]),
    LAX: (None, [Rules(use="fresh")]),
    OTHER: (Rules(serve="data"), []),
}


def policies(**keys: KeyDid) -> PoliciesByNetwork:
    return PoliciesByNetwork(OWN, keys, RULES)


def test_each_network_has_its_own() -> None:
    both = policies(bank=STRICT, town=LAX)
    assert both.is_divided
    bank, town = both.of(["bank"]), both.of(["town"])
    assert (str(bank.use), [group.name for group in bank.groups]) == ("data & attested:2", ["g1", "g2", "g3"])
    assert bank.max_stale == 86_400
    assert (str(town.use), town.groups) == ("data & fresh", OWN.groups)
    assert both.of(["club"]) == OWN, "a network without a key says nothing of what was met in it"
    assert both.of([]) == OWN


def test_of_a_dataset_of_several_the_first_is_tightened_by_the_others() -> None:
    both = policies(bank=STRICT, town=LAX)
    first = both.of(["bank", "town"])
    assert str(first.use) == "data & attested:2 & fresh"
    assert first.groups == both.of(["bank"]).groups
    other = both.of(["town", "bank"])
    assert implies(other.use, first.use)
    assert other.groups == (), "of its own keys none counts in the bank"
    assert any("unreachable" in note for note in other.notes)


def test_what_is_limited_to_no_network_all_tighten() -> None:
    both = policies(bank=STRICT, town=LAX)
    assert implies(both.of(None).use, parse_expression("data & attested:2 & fresh"))
    assert both.of(None).groups == (), "what a person accepted for the bank holds in the bank alone"
    assert policies(bank=STRICT).of(None) == policies(bank=STRICT).of(["bank"]), "as with one network"


def test_keys_of_all_networks_are_listened_to() -> None:
    both = policies(bank=STRICT, town=LAX)
    assert {key for group in both.joint.groups for key in group.keys} == set(KEYS[:4])
    assert both.of(["town"]).groups == OWN.groups, "and count where their network says so"


def test_one_network_or_a_key_of_the_settings_holds_everywhere() -> None:
    sole = PoliciesByNetwork(OWN, {"town": LAX}, RULES, LAX)
    assert not sole.is_divided
    assert sole.for_dataset(SigningKey(bytes(32)).dataset_id, lambda _: ["club"]) is None
    assert sole.joint == sole.of(["club"]) == sole.of(None)
    none = policies()
    assert not none.is_divided
    assert none.joint == OWN


@given(st.permutations(["bank", "club", "town"]), st.integers(1, 3))
def test_one_more_network_never_loosens(order: list[str], count: int) -> None:
    every = policies(bank=STRICT, club=OTHER, town=LAX)
    met = order[:count]
    fewer, more = every.of(met), every.of(order)
    assert implies(more.use, fewer.use)
    assert implies(more.serve, fewer.serve)
    assert {key for group in more.groups for key in group.keys} <= {key for group in fewer.groups for key in group.keys}
    assert more.max_stale <= fewer.max_stale
