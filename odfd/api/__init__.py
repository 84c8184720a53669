"""Implements the operations of the control API: ``services`` names them, ``routes`` lists their endpoints."""
