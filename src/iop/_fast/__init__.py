"""Native kernels of the hot path: bytes in, values out (WIRE-2, TUN-1, API-6, API-8c).

No kernel opens a socket, knows an event loop, reads a clock or logs. Whatever comes in may be hostile: each reads only
what it was given, and its cost is linear in that however it was cut. Bounds checks are off nowhere but in functions
whose docstring states the bound.
"""
