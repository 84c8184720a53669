"""What we think of peers: addresses, scores, budgets and when to try again. Pure values; time and chance come in."""
