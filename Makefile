# Every target sets up what it needs; the second time that is a look at a stamp.
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHON

.PHONY: demo test check lint types cover bench clean

demo: $(VENV)/.ready        ## refine real input with no key and no network
	@$(BIN)/redraft demo

test: $(VENV)/.ready-test   ## run all tests, on every core
	@$(BIN)/python -m pytest --numprocesses auto --dist loadfile

check: lint types test      ## what must hold before a change is handed in

lint: $(VENV)/.ready-test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.ready-test
	@$(BIN)/mypy

cover: $(VENV)/.ready-test  ## the tests, with branch coverage
	@$(BIN)/python -m pytest --cov --cov-report=term:skip-covered

bench: $(VENV)/.ready-test  ## figures of this machine; see bench/README.md
	@$(BIN)/python bench/startup.py
	@$(BIN)/python bench/overhead.py

$(VENV)/.ready: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) .
	@touch $@

$(VENV)/.ready-test: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) '.[test]'
	@touch $@ $(VENV)/.ready

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
