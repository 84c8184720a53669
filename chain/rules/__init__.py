"""Defines append rules: what a block must satisfy to follow a chain, and a snapshot to become one."""

from chain.rules.check import RULES, check_block
from chain.rules.rule import Binds, Rule, Violation
from chain.rules.snapshot import check_snapshot

__all__ = ["RULES", "Binds", "Rule", "Violation", "check_block", "check_snapshot"]
