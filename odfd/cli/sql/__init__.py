"""Implements ``odfctl sql``: questions to datasets, and answers as rows."""
