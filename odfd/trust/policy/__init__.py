"""What this node asks for before it relies on data: settings, network policies, profiles and witness quorums."""
