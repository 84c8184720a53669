"""Defines the policy of a node: its language of facts, how policies of networks tighten it, and its resource."""
