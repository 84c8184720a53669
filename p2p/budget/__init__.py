"""Limits the costs that unknown peers cause: keys are free, so addresses are charged too. Pure: time is an argument."""
