"""Decides which data a node uses and serves: admits and keeps signed statements, applies policy, and judges chains.

Spec: docs/spec/trust.md.
"""
