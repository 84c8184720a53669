"""Shows a node live for ``odfctl top``: asks it, works out rates and what needs a person, draws tables."""
