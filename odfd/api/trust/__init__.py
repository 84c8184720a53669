"""Shows trust in datasets, and records a person's decisions about it: validators, policies, authorities, forks."""
