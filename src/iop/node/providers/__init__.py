"""The providers that this node has: their connections, health, engines, and what each kind needs (HEALTH)."""
