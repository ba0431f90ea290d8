"""Node connections: registration, configuration, commands, health and engine load (REG)."""
