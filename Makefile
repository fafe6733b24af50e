# Everything here starts from nothing but Python (3.11 or later, with venv) and make.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PEERS := $(VENV)/.peers
# Most tests wait for processes that they start, so more of them run at once than there are cores.
WORKERS ?= 6
# Tests start Python more than a thousand times: without compiled files each start takes 0.3 s more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-root compiled lint docs pictures bench chaos mutants compat gpu-check doors clean

run: $(READY)  ## set up, then run the main job
	$(PY) main.py

test: $(READY)  ## set up, then pass every check and test
	@$(MAKE) --no-print-directory -j 2 lint compiled
	$(PY) -m pytest -n $(WORKERS) --dist worksteal

# Each worker collects all tests; it takes half as long when they are compiled. mypy has one thread.
compiled: $(READY)
	-@$(PY) -m pytest --collect-only -qq > $(VENV)/collected 2>&1

# What plays other users, mounts small disks or makes control groups; skipped for anybody but root.
ROOT_TESTS := tests/gpus/ledger/test_reservations.py tests/gpus/ledger/test_users.py tests/processes/test_containers.py tests/processes/test_host_memory.py tests/processes/test_namespaces.py \
	tests/processes/test_resources.py tests/store/test_base.py tests/store/test_files.py \
	tests/system/test_cgroups.py tests/system/test_oom_kills.py

test-root: $(READY)  ## as root: only the tests that need root
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(ROOT_TESTS)

lint: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

docs: $(READY)  ## build the site in build/docs; a warning or a broken link is an error
	$(PY) -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

pictures: $(READY)  ## make the pictures of the docs again, from real runs; needs Chromium
	$(PY) docs/pictures/terminal.py
	$(PY) docs/pictures/page.py

bench: $(PEERS)  ## measure it beside its peers; a table, JSON and a picture
	mkdir -p bench
	$(PY) -m benchmarks --json bench/performance.json --picture bench/performance.svg
	$(PY) -m benchmarks.packing --picture bench/packing.svg
	$(PY) -m benchmarks.executor
	$(PY) -m benchmarks.queue
	$(PY) -m benchmarks.web
	$(PY) -m benchmarks.far

chaos: $(READY)  ## kill it at every turn, and count what is lost; about half an hour
	mkdir -p chaos
	$(PY) -m benchmarks.chaos storm --json chaos/storm.json
	$(PY) -m benchmarks.chaos storm --one-by-one --json chaos/storm-one-by-one.json
	$(PY) -m benchmarks.chaos storm --embedded --jobs 2000 --json chaos/storm-embedded.json
	$(PY) -m benchmarks.chaos large --json chaos/large.json
	$(PY) -m benchmarks.chaos takeover --json chaos/takeover.json
	$(PY) -m benchmarks.chaos calls --json chaos/calls.json
	$(PY) -m tests.simulation 0-19999
	$(PY) -m tests.mutants

mutants: $(READY)  ## take out each rule once, and see its test go red
	$(PY) -m tests.mutants

gpu-check: $(READY)  ## a minute on a real card: a report to paste
	$(PY) -m postroom doctor --gpu

doors: $(READY)  ## the test suites of joblib, Hydra, Optuna and submitit, as installed, over our adapters
	$(PY) -m tests.adapters.foreign

compat: $(READY)  ## the quick tests, with each Python that is here, and the lowest and newest releases
	$(PY) -m tests.compatibility

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later with venv was found: install one" \
		"(apt-get install python3-venv), or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" \
		>&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --no-compile -c constraints.txt -e '.[torch,redis,web,frames,arrays,mcp,plot,joblib,hydra,optuna,submitit,ray,notebook,docs,dev]'
	-@$(PY) -m compileall -q -j 0 $(VENV)/lib > /dev/null  # on all cores: pip uses one
	touch $@

$(PEERS): $(READY)
	$(PY) -m pip install --quiet -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) dist build bench chaos .pytest_cache .mypy_cache .ruff_cache .hypothesis
