"""Limits the costs that unknown peers cause. Keys cost nothing, so addresses are charged too.
Pure: time is an argument."""
