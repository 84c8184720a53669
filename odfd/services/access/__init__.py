"""Manages accounts and their tokens, judges calls and applies, and tells accounts what they may see."""
