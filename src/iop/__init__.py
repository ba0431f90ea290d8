"""IOP: one HTTP endpoint in front of LLM servers that live elsewhere."""

__version__ = "0.1.0"
