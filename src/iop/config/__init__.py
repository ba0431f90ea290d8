"""Configuration files of both programs (CONF-1; shapes: configs/).

``edge`` and ``node`` hold frozen models with the defaults; ``load`` turns a YAML file into one, or raises one
:class:`iop.errors.ConfigError` that lists every fault of the file. Only the composition roots (``iop.edge``,
``iop.node``) and the commands read these objects: every other room gets plain values.
"""
