"""llama.cpp's server. It closes 5 to 36 % of kept connections right after a streamed answer and none after 50 ms, so
the rest after a stream is not optional here (TUN-5)."""

from iop.node.adapters.openai_compat import Adapter

ADAPTER = Adapter("llama_cpp", health_path="/health")
