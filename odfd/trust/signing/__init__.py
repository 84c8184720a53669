"""What this node signs as owner: heads with the blocks they sign, versions of authorities, and who may sign."""
