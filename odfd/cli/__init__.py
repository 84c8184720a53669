"""``odfctl``: the daemon's hand. It knows the wire and the errors, and imports only what the one command needs."""
