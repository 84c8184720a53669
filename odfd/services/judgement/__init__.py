"""Decides by the policy in force which blocks this node uses and serves, and commits to its own chains."""
