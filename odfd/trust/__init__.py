"""Decides what a node relies on: admits and keeps signed statements, applies policy, and judges chains.

Spec: docs/spec/trust.md.
"""
