"""What a node believes, and why: admission of statements, their ledger, policy, judgement and reach (trust.md)."""
