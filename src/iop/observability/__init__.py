"""What the programs tell about themselves (OBS-1, OBS-2): every metric is declared in ``metrics``, every line goes
through ``logs``.

Nothing here runs per event of a stream. Nothing here may import a room that serves requests: those hand in plain values
and callbacks. No prompt, output, secret, URL or client-chosen text becomes a label or a field (SEC-4).
"""
