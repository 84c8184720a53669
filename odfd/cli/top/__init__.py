"""Shows a node live for ``odfctl top``: polls it, computes rates and required actions, draws tables."""
