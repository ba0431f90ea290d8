"""The connection to the edge: made again and again, trusted, and what one of them carries (SUP, REG)."""
