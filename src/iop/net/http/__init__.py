"""HTTP/1.1 for both programs: the edge's server and the node's client, under one policy (API-6).

Heads are found natively under byte caps and handed to httptools one at a time; bodies are decoded natively. Whatever is
ambiguous about where a message ends is refused.
"""
