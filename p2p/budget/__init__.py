"""Limits what strangers cost this node: keys are free, so addresses are charged too. Pure: time is an argument."""
