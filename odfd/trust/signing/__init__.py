"""Signs as the owner of datasets: heads with the blocks they cover, and versions of authorities,
which say who may sign."""
