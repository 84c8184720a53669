"""A network of thousands of lookup nodes in virtual time, with churn, silent nodes, liars and attackers at a key."""
