"""The program beside the providers: it dials out to its edge and executes there what the edge sends.

``app`` is the composition root and the only reader of configuration in here. ``supervisor`` keeps a connection,
``agent`` is one connection's work, ``tunnel`` one request's. The node never retries an execution (EXEC-11), and its
capacity gate outlives every connection (EXEC-3).
"""
