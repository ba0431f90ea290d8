"""The program that runs beside the providers: it dials out to the edge, keeps that connection alive under one reconnect
policy, and executes what the edge sends through its adapters.

Nothing in here decides where a request goes, queues one, or sends one again: that is the edge's alone (EXEC-3,
EXEC-11).
"""
