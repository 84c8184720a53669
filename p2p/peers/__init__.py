"""Keeps what is known of peers: addresses, scores, next dials. Pure: time and randomness are arguments."""
