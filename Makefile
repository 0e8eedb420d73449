# Every target sets up what it needs; the second time that is a look at a stamp.
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHON

.PHONY: demo test lowest check lint types cover bench clean

demo: $(VENV)/.ready        ## refine real input with no key and no network
	@$(BIN)/redraft demo

test: $(VENV)/.ready-test   ## run all tests, on every core
	@$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lowest: $(VENV)-lowest/.ready ## what the oldest declared version of any dependency could break (Python 3.11)
	@$(VENV)-lowest/bin/python -m pytest --numprocesses auto --dist loadfile -p no:cacheprovider $(AT_LOWEST)

AT_LOWEST := tests/datasets tests/stores tests/requirements tests/graders/test_registry.py tests/graders/test_reading.py \
	tests/validation/test_measures.py tests/wire/test_chat_real.py tests/wire/test_providers.py tests/wire/test_stream_caps.py \
	tests/test_compute.py tests/test_forks.py tests/test_licences.py tests/test_surface.py

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

$(VENV)-lowest/.ready: pyproject.toml scripts/setup.sh scripts/lowest.py
	@mkdir -p build
	@python3.11 scripts/lowest.py > build/lowest.txt
	@PYTHON=python3.11 PIP_CONSTRAINT=$(CURDIR)/build/lowest.txt UV_CONSTRAINT=$(CURDIR)/build/lowest.txt \
		sh scripts/setup.sh $(VENV)-lowest '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-lowest build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
