"""The protocol between edge and node, without I/O: messages, their coding, and the life of one connection.

Bytes and instants go in, messages and bytes come out. Nothing in here opens a socket, awaits or reads a clock. The
official protobuf runtime is used in ``codec`` alone; everybody else sees the plain values of ``messages``.
"""
