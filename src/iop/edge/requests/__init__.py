"""Requests on their way through the pool to a node and back (POOL, API-7, API-8)."""
