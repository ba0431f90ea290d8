"""Who is who between edge and node: certificates, what makes them, contexts for TLS, and join tokens (SEC-1, REG-1).

Nothing here does I/O beyond reading the files it is pointed to; :mod:`iop.net.tls` puts the contexts to use.
"""
