"""The admin listener and what it serves: status, events, operators' runs, drains and cancels (OBS-4)."""
