# One command each; `make test` is what .ci/run calls.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(wildcard src/iop/_fast/*.pyx src/iop/_fast/*.pxd)

.PHONY: run test bench lint asan proto clean
