"""Where records came from, from dataset to dataset: which block holds one, what an engine is asked about it, and the
source of what was ingested. Reads chains and objects; changes nothing.
"""
