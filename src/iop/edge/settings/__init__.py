"""The configuration: as plain values, read again while the edge runs, completed by what nodes find (CONF-2)."""
