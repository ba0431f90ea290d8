"""asyncio, shared by both programs: the loop, the link, TLS, HTTP server and client.

Everything here is thin: it moves bytes between transports and the machines of the rooms below, and decides nothing that
a machine could decide. It reads no configuration object; callers pass plain values.
"""
