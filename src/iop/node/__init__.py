"""The program beside the providers: it dials out to its edge and executes there what the edge sends.

``app`` is the composition root and the only reader of configuration in here. ``uplink`` keeps a connection to the edge,
``calls`` has what the edge asks of ``providers``, ``commands`` what it asks of the node. The node never retries an
execution (EXEC-11), and its capacity gate outlives every connection (EXEC-3).
"""
