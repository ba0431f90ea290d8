"""The program that faces clients: selection, admission, the life of each request, and the links to the nodes.

``app`` is the composition root; ``gateway`` answers HTTP, ``requests`` has one request's life, ``nodes`` owns the
links. Nothing in this room connects to a provider (TUN-1).
"""
