# noisewise: `make demo` shows the main job, `make test` proves it. Both set themselves up in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint types bench clean help
help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)   ## fit the bundled release, print posterior beside naive, write out/demo.html
	$(BIN)/noisewise demo --out out

test: $(STAMP)   ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

lint: $(STAMP)   ## ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

bench: $(STAMP)  ## the benchmark tables, in benchmarks/
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[dev,bench]'
	$(BIN)/python benchmarks/run.py

clean:           ## remove the environment and the outputs
	rm -rf $(VENV) out
