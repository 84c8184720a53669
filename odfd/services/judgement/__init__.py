"""Decides by the policy in force what this node relies on, and commits to its own chains: what others build on."""
