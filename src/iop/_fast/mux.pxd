from cpython.object cimport PyObject

from iop._fast.frame cimport Frame
from iop._fast.out cimport Flushable, Hub, OutBuffer, Sink


cdef struct Slot:
    unsigned int stream_id      # 0 = free
    PyObject* stream            # borrowed from the table's own reference


cdef class StreamTable:
    cdef Slot* slots
    cdef Py_ssize_t size        # a power of two
    cdef readonly Py_ssize_t used
    cdef PyObject* get(self, unsigned int stream_id) noexcept nogil
    cdef int add(self, unsigned int stream_id, object stream) except -1
    cdef int drop(self, unsigned int stream_id) except -1


cdef class Stream(Sink):
    cdef Mux mux
    cdef readonly unsigned int stream_id
    # sending
    cdef readonly long long send_credit
    cdef object lane                # deque of frames that wait for the congested link, or None
    cdef readonly long long lane_bytes
    cdef long long deficit
    cdef bint in_ring
    cdef bint opening_in_lane       # nothing of this stream has left yet
    cdef readonly bint blocked      # the link is over its bound: stop reading the source
    # receiving
    cdef readonly long long window
    cdef readonly long long allowed  # bytes that the peer may still send
    cdef readonly long long owed    # bytes taken and not yet credited back
    cdef int on_frame(self, Frame* f, object extra) except -1
    cdef int broken(self, object exc) except -1
    cdef int on_credit(self) except -1
    cdef int on_unblocked(self) except -1
    cdef int received(self, Py_ssize_t n) except -1
    cdef int settle(self) except -1
    cdef int released(self) except -1


cdef class Mux(Flushable):
    cdef StreamTable table
    cdef readonly bint edge
    cdef readonly bint closed
    cdef public bint data_open
    cdef public bint heartbeat_open
    cdef public Py_ssize_t max_frame_bytes
    cdef readonly unsigned int highest_id
    cdef object on_message
    cdef object on_fault
    # receiving: a frame that is not whole yet
    cdef char* held
    cdef Py_ssize_t held_n
    cdef Py_ssize_t held_cap
    cdef bytes backlog              # what came behind the last cold message that this round had room for, or None
    cdef int cold_now               # cold messages of this round
    cdef object round_over
    cdef public object on_reading   # hears whether to read on, or None
    # sending
    cdef OutBuffer control
    cdef OutBuffer bulk
    cdef Stream system
    cdef object ring                # deque of streams with something in their lane
    cdef list blocked_streams
    cdef long long lanes_bytes
    cdef object transport
    cdef object unsent
    cdef readonly bint paused
    cdef readonly bint congested
    # counters
    cdef readonly unsigned long long frames_in
    cdef readonly unsigned long long frames_out
    cdef readonly unsigned long long bytes_in
    cdef readonly unsigned long long bytes_handed
    cdef readonly unsigned long long late_frames
    cdef readonly unsigned long long cold_frames
    cdef readonly unsigned long long last_ack

    cdef char* room(self, Stream s, Py_ssize_t n) except NULL
    cdef int envelope(self, const char* p, Py_ssize_t n) except -1
    cdef int dispatch(self, Frame* f, object extra) except -1
    cdef int hold(self, const char* p, Py_ssize_t n) except -1
    cdef int wait(self, const char* p, Py_ssize_t n) except -1
    cdef int parse(self, const char* p, Py_ssize_t n) except -1
    cdef Py_ssize_t frame_length(self, const char* p) except -1
    cdef int credit(self, Stream s, unsigned int n) except -1
    cdef int push_body(self, Stream s, const char* body, Py_ssize_t n, bint last) except -1
    cdef int push_run_event(
        self, Stream s, unsigned int seq, unsigned int kind, const char* text, Py_ssize_t n) except -1
    cdef int control_grew(self) except -1
