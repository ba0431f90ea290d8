"""The commands of an edge on its node (EXEC-8)."""
