"""Operations on datasets: list, show, ingest, pull, export, verify, rewrite, publish."""
