"""Shows trust in datasets, and takes a person's decisions on it: validators, policies, authorities, forks."""
