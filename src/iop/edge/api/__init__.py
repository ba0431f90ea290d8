"""The client APIs: which paths there are, how each says no, how each ends a broken stream (API-1, API-5, API-8b)."""
