"""The program that faces clients: selection, admission, the life of each request, and the links to the nodes.

``app`` is the composition root and the only reader of configuration in here; ``front`` answers HTTP, ``request`` is one
request's life, ``nodes`` owns the links. Nothing in this room connects to a provider (TUN-1).
"""
