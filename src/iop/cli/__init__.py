"""The commands that people type: ``iop-edge`` and ``iop-node``.

A command parses its line, loads the configuration and calls one function of a program; it decides nothing else. What
fails is said on stderr in one line that tells what to do. The programs themselves are imported only by the commands
that run them, so that ``--help`` and ``check`` stay quick.
"""
