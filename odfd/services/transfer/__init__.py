"""Transfers datasets: import, export, push and pull with folders, repositories and other nodes."""
