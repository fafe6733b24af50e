# Everything here starts from nothing but Python 3.11 and make.
PYTHON ?= python3.11
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready

.PHONY: run test lint bench chaos clean

run: $(STAMP)  ## set up, then run the main job
	$(PY) main.py

test: $(STAMP) lint  ## set up, then pass every check and test
	$(PY) -m pytest

lint: $(STAMP)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e '.[torch,redis,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
