# One command each. Everything needs only Python >= 3.11, a C compiler and make; the rest is installed into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST ?= $(BIN)/python -m pytest
REFRESH_S ?= 300
KERNELS := $(wildcard src/iop/_fast/*.pyx src/iop/_fast/*.pxd)

# A copy of the sources, so that a sanitized kernel never replaces the one that everything else loads.
ASAN := build/asan
ASAN_ENV = PYTHONPATH=$(abspath $(ASAN))/src PYTHONMALLOC=malloc IOP_TEST_PROFILE=asan \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so)"

.PHONY: run test bench lint asan asan-kernels fuzz differential sim fairness oracle mutants chaos chaos-kill chaos-edge \
	chaos-link chaos-sigterm chaos-refresh chaos-silence attack odd nightly docs proto wheel clean build
.DELETE_ON_ERROR:

run: build
	@$(BIN)/iop-edge demo

test: build
	$(PYTEST)

bench: build
	$(PYTEST) benchmarks --benchmark-only

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(KERNELS),PATH="$(abspath $(BIN)):$$PATH" cython-lint $(KERNELS))

# Linux only: the sanitizer's runtime has to be loaded before the interpreter's own libraries.
asan: asan-kernels
	$(ASAN_ENV) $(PYTEST) -p no:cacheprovider $(wildcard tests/unit tests/property tests/fuzz)

# A client's bytes from the socket to the lease, mutated for so many seconds, on the same kernels.
SECONDS ?= 60
fuzz: asan-kernels
	$(ASAN_ENV) $(BIN)/python -m tests.fuzz --seconds $(SECONDS)

# Bodies that parsers read differently, against the parsers that model servers use; 20 000 of them are in make test.
JSON_BODIES ?= 1000000
FORMS ?= 100000
differential: build
	$(BIN)/python -m tests.fuzz.differential --json $(JSON_BODIES) --forms $(FORMS)

asan-kernels: build
	mkdir -p $(ASAN)
	tar -c --exclude='*.so' --exclude='*.c' --exclude='__pycache__' -f - setup.py pyproject.toml README.md LICENSE src \
		| tar -x -f - -C $(ASAN)
	cd $(ASAN) && IOP_SANITIZE=1 $(abspath $(BIN))/python setup.py -q build_ext --inplace

# The whole system under a virtual clock, with everything that may go wrong; a part of it is in make test.
SEEDS ?= 100
LIFECYCLES ?= 1000
sim: build
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --lifecycles $(LIFECYCLES)

# Principals that compete for providers, in the pool alone; 200 of them are in make test.
fairness: build
	$(BIN)/python -m tests.property.test_fairness --seeds 10000

# What clients receive through an edge and a node, against what they receive directly: EXCHANGES drawn ones. A thousand are
# in make test. VISIT=n makes one again.
EXCHANGES ?= 20000
oracle: build
	$(BIN)/python -m tests.oracle $(if $(VISIT),--visit $(VISIT),--exchanges $(EXCHANGES))

# Plants known bugs in a copy of this tree; the simulation or a test must notice each. MUTANTS="name …" for some.
mutants: build
	$(BIN)/python -m tests.mutants $(MUTANTS)

# Real processes that are killed, frozen and terminated under load, and a bad link, with a ledger of all requests; a
# short run of each is in make test. All of them with these numbers take about six minutes.
CYCLES ?= 40
RESTARTS ?= 30
STEPS ?= 40
SEED ?= 1
STREAMS ?= 200
CHAOS := $(PYTEST) -q -s -o faulthandler_timeout=0

chaos: build
	CYCLES=$(CYCLES) RESTARTS=$(RESTARTS) STEPS=$(STEPS) SEED=$(SEED) STREAMS=$(STREAMS) REFRESH_S=60 $(CHAOS) tests/chaos

# The node: kill -9 and restart, CYCLES times; one in twenty is frozen and taken over from instead.
chaos-kill: build
	CYCLES=$(CYCLES) $(CHAOS) tests/chaos/test_kill.py

# The edge: kill -9 or SIGTERM and restart, RESTARTS times.
chaos-edge: build
	RESTARTS=$(RESTARTS) $(CHAOS) tests/chaos/test_edge.py

# A fault proxy between them: each fault once, then STEPS of them at random from SEED.
chaos-link: build
	STEPS=$(STEPS) SEED=$(SEED) $(CHAOS) tests/chaos/test_link.py

# SIGTERM of either under STREAMS live streams.
chaos-sigterm: build
	STREAMS=$(STREAMS) $(CHAOS) tests/chaos/test_sigterm.py

# Floods against one edge: gzip bodies, forms, silent sockets, events of a node. ATTACK_S seconds each.
ATTACK_S ?= 15
attack: build
	ATTACK_S=$(ATTACK_S) $(CHAOS) tests/chaos/test_attacks.py

# Changes the configuration 200 times a minute, for REFRESH_S seconds.
chaos-refresh: build
	REFRESH_S=$(REFRESH_S) $(CHAOS) tests/chaos/test_refresh.py

# A model that thinks for longer than a link may be silent, with the real clocks: a minute.
chaos-silence: build
	$(CHAOS) tests/chaos/test_silence.py

# The whole suite from a long path, as a background job without a terminal, in 80 columns, another umask and time zone.
odd: build
	$(BIN)/python -m tests.support.odd

# What takes longer than a change may: each line goes on where the one before has failed, and the end says which did.
NIGHTLY := odd oracle differential fairness attack chaos chaos-silence fuzz sim mutants
nightly: build
	@failed=; for target in $(NIGHTLY); do echo "== $$target"; \
		$(MAKE) --no-print-directory $$target SEEDS=1000 SECONDS=600 MUTANTS=--all || failed="$$failed $$target"; done; \
		test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# docs/configuration.md, from the models that read the files and the comments of configs/; docs/states.md, from the
# tables of the machines; docs/faults.md, from the tables that the fault wall is tested against.
docs: build
	$(BIN)/python docs/generate.py
	$(BIN)/python -m tests.support.faultywall

proto: build
	mkdir -p build/proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=build/proto --pyi_out=build/proto proto/iop/runtime.proto
	mv build/proto/iop/runtime_pb2.py build/proto/iop/runtime_pb2.pyi src/iop/wire/pb/

# A wheel for this machine and Python into dist/, offline. What an earlier build left would end up in it.
wheel: build
	rm -rf build/lib.* build/bdist.* dist/iop-*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf build dist src/*.egg-info src/iop/_fast/*.c src/iop/_fast/*.so .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .benchmarks .hypothesis $(VENV)/.installed $(VENV)/.built
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps: dependencies come over the network and only when their list changes; kernels are compiled offline.
build: $(VENV)/.built

$(VENV)/.installed: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "IOP needs Python 3.11 or newer: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
		|| { echo "this Python lacks venv or its C headers; on Debian: apt-get install python3-venv python3-dev" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	IOP_KERNELS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(KERNELS)
	$(BIN)/python setup.py -q build_ext --inplace
	@touch $@
