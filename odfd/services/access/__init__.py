"""Manages accounts and their tokens, judges calls and applies, and reports to accounts what they may see."""
