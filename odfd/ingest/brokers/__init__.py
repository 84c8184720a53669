"""Asks message brokers in a process of their own, whose memory is bounded."""
