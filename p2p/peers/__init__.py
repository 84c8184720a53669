"""Values about peers: addresses, scores, budgets, next attempts. Pure: time and randomness are arguments."""
