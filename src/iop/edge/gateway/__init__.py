"""Who comes in: access, the pages that the edge answers itself, and the way to a request (API-1, API-4, API-5)."""
