"""What a client receives through IOP is what it receives directly: drawn exchanges over real sockets, compared.

    python -m tests.oracle --exchanges 20000        draws from a fresh seed, which is printed
    python -m tests.oracle --visit 4711             one visit again, alone

A visit is one client connection with one to three exchanges. Everything about it follows from one number: what the
providers answer and how they send it (:mod:`tests.oracle.answers`), and how the client asks and reads
(:mod:`tests.oracle.visits`).
Each exchange is made twice, through a real edge and a real node and directly with the same provider, and compared
(:mod:`tests.oracle.compare`). The fault wall covers what fails; this covers what succeeds.
"""
