"""Implements the features of a node, a package each: the operations of a feature and its work in the background."""
