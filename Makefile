# noisewise: `make demo` shows the main job, `make test` proves it. Both set themselves up in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint types bench sbc studies-smoke docs browser clean help
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

bench: $(VENV)/.bench ## noisewise against what a user would run today, into out/bench (about 2 hours; goes on where it was stopped)
	$(BIN)/python benchmarks/run.py

studies-smoke: $(STAMP) ## every study of the papers at a small size (under 10 minutes)
	$(BIN)/noisewise study all --tiny --out out/studies-smoke

sbc: $(STAMP)    ## calibrate every engine with every model and noise law, into out/sbc.md (hours; goes on where it was stopped)
	$(BIN)/python benchmarks/sbc.py

docs: $(VENV)/.docs ## the documentation as a site, in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would hide the warnings from --strict

browser: $(VENV)/.browser ## the report in a real Chromium (Debian: apt-get install chromium)
	$(BIN)/python -m pytest -q tests/report/browser_checks.py

$(VENV)/.docs $(VENV)/.browser $(VENV)/.bench: $(VENV)/.%: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[dev,$*]'
	touch $@

clean:           ## remove the environment and the outputs
	rm -rf $(VENV) out
