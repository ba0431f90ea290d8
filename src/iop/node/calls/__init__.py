"""Calls to providers: tunnels and normalized runs, and the watch over their silence (TUN, EXEC, LIVE)."""
