"""What the streams of one end have in common (streams.pyx)."""

from iop._fast.mux import Stream

class RequestStream(Stream):
    """Sends a request body as the node's credit allows."""

    def send_body(self, pieces: list[bytes]) -> None: ...

class SourceStream(Stream):
    """Takes a request body at the node, and sends what becomes of it."""

    @property
    def next_seq(self) -> int: ...
    @property
    def fenced(self) -> bool: ...
    @property
    def terminal_sent(self) -> bool: ...
