"""Clients' keys: what a key may do and how much, and the file that holds them (API-11)."""
