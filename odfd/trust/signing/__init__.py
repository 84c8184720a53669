"""Signs as the owner of datasets: heads with the blocks they cover, versions of authorities, and who may sign."""
