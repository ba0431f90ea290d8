"""Hand-made seeds, one list per kind of input, and the tokens that mutations put in. Small: mutations do the rest."""

from __future__ import annotations

import json

CHUNKED = [
    b"5\r\nhello\r\n0\r\n\r\n",
    b'5;a=b;c="d"\r\nhello\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\nY:\r\n\r\nGET / HTTP/1.1\r\n',
    b"1\r\nx\r\n" * 20 + b"000\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"7fffffffffffffff\r\nabc",
    b"0 ;x\r\n\r\n",
]
CHUNKED_TOKENS = [
    b"\r\n",
    b"\n",
    b"\r",
    b";",
    b" ",
    b"0\r\n",
    b"5\r\n",
    b"f" * 16,
    b"0" * 17,
    b"a: b\r\n",
    b"\0",
    b"\xff",
]

HEADS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\n\r\nPOST /v1/messages?beta=true HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX-\xe9: \xff\t.\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\r\n\r\n",
]
HEAD_TOKENS = [b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b":", b"\0", b"\x7f", b"a: b\r\n", b"x" * 50]

BLOCKS = [b"", b"content-type: text/event-stream\r\nx-a: \r\n", b"a: b\r\na: c\r\nset-cookie: d; e=f\r\n"]

_CHOICE = {"index": 0, "delta": {"role": "assistant", "content": 'a "[DONE]" \u20ac'}, "finish_reason": None}
_CHAT = [
    {"id": "c", "choices": [_CHOICE], "usage": None},
    {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 1, "details": {"cached": [1, 2]}}},
    {"error": {"message": "no", "type": "invalid_request_error", "code": 400}},
]
_RESPONSES = [
    {"type": "response.created", "response": {"usage": None}},
    {"type": "response.output_item.added", "item": {"type": "function_call"}},
    {"delta": "x", "type": "response.output_text.delta"},
    {"type": "response.completed", "response": {"output": [{}], "usage": {"input_tokens": 1}}},
    {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}},
]
_MESSAGES = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
STREAMS = [
    *(
        b"".join(b"data: %b%b%b" % (json.dumps(document).encode(), eol, eol) for document in documents)
        for documents in (_CHAT, _RESPONSES, _MESSAGES)
        for eol in (b"\n", b"\r\n")
    ),
    b"\xef\xbb\xbf: hi\r\revent: ping\rdata:{}\r\rdata: [DONE]\r\r",
    b'id: 1\nretry: 5\nevent: response.completed\ndata: {"response":\ndata: {"usage":{}}}\n\ndata\n\n',
]
STREAM_TOKENS = [
    *(
        b"\n",
        b"\r",
        b"\n\n",
        b"data: ",
        b"data:",
        b"event: error\n",
        b": c\n",
        b"[DONE]",
        b"\\u0063",
        b"NaN",
        b"-Infinity",
    ),
    *(
        b'"choices":[',
        b'"usage":{',
        b'"type":"error"',
        b"null",
        b'""',
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b"\\",
        b"\xf0\x9f",
    ),
]

REQUESTS = [
    json.dumps(
        {"messages": [{"role": "user", "content": "h\u00e9 \U0001f600"}], "stream": True, "model": "m"}
    ).encode(),
    '{"model":"a/b","tools":[{"type":"mcp"},{"type":"function","function":{}}],"x":"\u20ac\u00e9\U0001f600"}'.encode(),
    b' {"m\\u006fdel" : "\\ud83d\\ude00" , "store":false,"background":null,"previous_response_id":"r"} ',
    b'{"model":"m","n":[0,-0.5e+10,1E5,true,false,null,[[]],{"a":{}}]}',
    b'{"model":"m","image":"' + b"iVBOR/\\/+" * 130 + b'="}',
    b'{"model":"m","x":' + b"[" * 511 + b"]" * 511 + b"}",
]
REQUEST_TOKENS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\\u", b"\\ud800", b"\\/", b"0", b"-", b"e", b".", b" ", b"\n"),
    *(
        b'"model":',
        b'"stream":true,',
        b'"tools":[',
        b"null",
        b"\x00",
        b"\xff",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
        b"A" * 1024,
    ),
]
