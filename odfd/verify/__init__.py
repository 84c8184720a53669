"""Is what a chain says true: hashes, links and rules, and whether its objects are what its blocks say they are."""
