"""Implements ``odfctl sql``: runs queries over datasets, and shows their rows."""
