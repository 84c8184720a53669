"""Reads, plans, applies and shows resources: from manifests to the desired state, and on to the observed one."""
