# cython: language_level=3
"""What the streams of one end have in common, whether a tunnel or a normalized run: how a request's body goes out from
the edge, and how it comes in at the node (WIRE-5)."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from iop._fast cimport frame as fr

from iop.errors import ProtocolError


cdef class RequestStream(Stream):
    """What the edge's halves have in common: the request body goes out as the node's credit allows."""

    def send_body(self, list pieces not None):
        """Sends the request body in chunks, as the node's credit allows (WIRE-5). The pieces are only referenced."""
        self.pieces = pieces
        self.pump()

    cdef int pump(self) except -1:
        cdef bytes piece
        cdef Py_ssize_t n, left
        while self.pieces is not None and not self.blocked and self.send_credit > 0 and not self.mux.closed:
            piece = <bytes>self.pieces[self.piece]
            left = len(piece) - self.offset
            n = CONGESTED_MAX if self.mux.congested else DATA_MAX
            if n > left:
                n = left
            if n > self.send_credit:
                n = <Py_ssize_t>self.send_credit
            last = n == left and self.piece + 1 == len(self.pieces)
            self.mux.push_body(self, PyBytes_AS_STRING(piece) + self.offset, n, last)
            if last:
                self.pieces = None
            elif n == left:
                self.piece += 1
                self.offset = 0
            else:
                self.offset += n
        return 0

    cdef int on_credit(self) except -1:
        return self.pump()

    cdef int on_unblocked(self) except -1:
        return self.pump()


cdef class SourceStream(Stream):
    """The node's: it takes the request body and says what it makes of it, frame by frame, up to one terminal. ``owner``
    hears::

        on_request_body(data, last)       a chunk of the request body
        on_broken(exception)              this, or what a subclass calls, raised while a frame was handled
    """

    cdef int on_frame(self, fr.Frame* f, object extra) except -1:
        if f.payload != fr.P_TUNNEL_BODY:
            raise ProtocolError("wrong_state", f"stream {self.stream_id}")
        self.received(f.body_n)
        self.owner.on_request_body(PyBytes_FromStringAndSize(f.body, f.body_n), f.last)
        return 0

    cdef int broken(self, object exc) except -1:
        self.owner.on_broken(exc)
        return 0

    cdef int on_credit(self) except -1:
        return self.go_on()

    cdef int on_unblocked(self) except -1:
        return self.go_on()

    cdef int go_on(self) except -1:
        """Credit or room came back."""
        return 0
