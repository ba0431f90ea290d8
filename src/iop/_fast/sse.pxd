# cimported by relay.pyx; sse.pyi describes the Python face.
from iop._fast.scan cimport Capture, Json

cpdef enum:
    PREAMBLE = 1
    SEMANTIC = 2
    FINISH = 4
    ERROR = 8
    BOUNDARY = 16    # set by the relay from `at_boundary`, never by feed_span
    EVENT_ID = 32    # an event with an id (API-7b)
    ERROR_4XX = 64   # an error that blames the request (API-7)

cpdef enum:
    OTHER = 0
    CHAT = 1         # chat/completions and completions
    RESPONSES = 2
    MESSAGES = 3


cdef class EventSplitter:
    # lines
    cdef int dialect
    cdef int line
    cdef bint after_cr
    cdef int name_n
    cdef int event_n
    cdef bint has_fields          # the event that is being read has a line that is no comment
    cdef bint has_id
    cdef bint lone_cr             # a CR ended a line by itself, so no LF is waited for behind one
    # its data
    cdef bint has_data
    cdef int text                 # how the data is read
    cdef int matched              # bytes of [DONE]
    cdef unsigned long long data_bytes
    cdef unsigned int facts
    cdef int kind                 # class of its "type"
    cdef int value                # what the member behind the last key is for
    cdef int into                 # the path that it opens
    cdef Capture* capturing
    cdef Json js
    cdef Capture[2] usages        # the last complete usage object, and that of the event that is being read
    cdef Capture[2] starts        # the same for message_start
    cdef unsigned char[5] path    # by depth
    # Choices of a chat stream, a bit for each of the first 128: in the event that is being read, and in all so far.
    cdef int choice               # the index of the one that is being read
    cdef bint choice_finished
    cdef unsigned long long[2] event_choices
    cdef unsigned long long[2] event_ends
    cdef unsigned long long[2] choices
    cdef unsigned long long[2] ends
    cdef bint over                # an event was the stream's last by itself
    cdef unsigned char[8] name
    cdef unsigned char[64] event
    cdef unsigned char[64] word
    cdef readonly bint at_boundary
    cdef readonly bint finished
    cdef readonly unsigned long long events            # complete ones
    cdef readonly unsigned long long progress_events   # LIVE-2

    cdef int feed_span(self, const char* span, Py_ssize_t n) except -1
    cdef int _begin_data(self) except -1
    cdef int _data(self, const unsigned char* p, const unsigned char* end) except -1
    cdef int _json(self, const unsigned char* p, const unsigned char* end) except -1
    cdef void _key(self) noexcept
    cdef bint _open(self, int token) noexcept
    cdef void _in_choices(self) noexcept
    cdef int _close(self, const unsigned char* begun, const unsigned char* p) except -1
    cdef int _scalar(self, int token) except -1
    cdef void _choice_closed(self) noexcept
    cpdef int end(self) except -1
    cdef int _dispatch(self) noexcept
    cdef void _count_choices(self) noexcept
    cdef int _classify(self) noexcept
