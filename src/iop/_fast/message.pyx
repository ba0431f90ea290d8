# cython: language_level=3
"""The encoder of messages that Python fills: those that are made for every request (WIRE-3)."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.string cimport memcpy

from iop._fast.frame cimport put_prefix, put_varint, vlen


cdef Py_ssize_t _value_size(unsigned int number, object value) except -1:
    cdef Py_ssize_t n
    cdef unsigned long long v
    if isinstance(value, bytes):
        n = PyBytes_GET_SIZE(value)
    elif isinstance(value, str):
        PyUnicode_AsUTF8AndSize(value, &n)
    elif not isinstance(value, int):  # what makes itself a number could be another one the next time
        raise TypeError(f"field {number}: a number, bytes or text, not {type(value).__name__}")
    else:
        v = value
        return vlen(number << 3) + vlen(v) if v else 0
    return vlen(number << 3) + vlen(n) + n if n else 0


cdef char* _put_value(char* p, unsigned int number, object value) except NULL:
    cdef Py_ssize_t n
    cdef unsigned long long v
    cdef const char* data
    if isinstance(value, bytes):
        n = PyBytes_GET_SIZE(value)
        data = PyBytes_AS_STRING(value)
    elif isinstance(value, str):
        data = PyUnicode_AsUTF8AndSize(value, &n)
    else:
        v = value
        return put_varint(put_varint(p, number << 3), v) if v else p
    if n == 0:
        return p
    p = put_varint(put_varint(p, number << 3 | 2), n)
    memcpy(p, data, n)
    return p + n


cdef class Message:
    """Encodes one type of message from the values of its fields: unsigned integers, bytes (nested messages too) and
    text. Zero and empty values are left out."""

    cdef tuple numbers

    def __init__(self, tuple numbers not None):
        """``numbers``: of the fields, in the order of the values that come later; 1 to 536870911."""
        cdef int number
        for number in numbers:
            if not 0 < number < 1 << 29:
                raise ValueError("a field number is from 1 to 536870911")
        self.numbers = numbers

    cdef Py_ssize_t _size(self, tuple values) except -1:
        cdef Py_ssize_t n = 0, i
        if len(values) != len(self.numbers):
            raise ValueError(f"{len(values)} values for {len(self.numbers)} fields")
        for i in range(len(values)):
            n += _value_size(self.numbers[i], values[i])
        return n

    cdef int _put(self, char* p, tuple values) except -1:
        cdef Py_ssize_t i
        for i in range(len(values)):
            p = _put_value(p, self.numbers[i], values[i])
        return 0

    def encode(self, *values):
        """The message alone, as it stands in another one.

        Raises:
            OverflowError: a number is negative or longer than 64 bits.
            TypeError: a value is of another type.
            ValueError: there are more or fewer values than fields.
        """
        cdef bytes out = PyBytes_FromStringAndSize(NULL, self._size(values))
        self._put(PyBytes_AS_STRING(out), values)
        return out

    def encode_frame(self, unsigned int payload, bytes front not None, *values):
        """A whole frame with the message as the envelope's field ``payload``: ``front``, which holds fields that are
        encoded already, then the values. Raises what ``encode`` does."""
        cdef Py_ssize_t inner = len(front) + self._size(values)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 + vlen(payload << 3) + vlen(inner) + inner)
        cdef char* p = put_prefix(PyBytes_AS_STRING(out), vlen(payload << 3) + vlen(inner) + inner)
        p = put_varint(put_varint(p, payload << 3 | 2), inner)
        memcpy(p, PyBytes_AS_STRING(front), len(front))
        self._put(p + len(front), values)
        return out
