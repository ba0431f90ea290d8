"""vLLM's OpenAI-compatible server."""

from iop.node.adapters.openai_compat import Adapter

ADAPTER = Adapter("vllm", health_path="/health")
