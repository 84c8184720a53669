"""Shows trust in datasets and records decisions about it; signs heads, cosigns, and recovers journals."""
