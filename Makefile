# Every target sets up what it needs; stamp files (.ready) make that instant the next time.
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHON

# Tests start many processes; an interpreter that may write its compiled files starts in a third of the time.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder
SLOW ?= none

.PHONY: adapters clients demo test test-all test-skipped test-shuffled lowest check lint types mypy pyright docs site cover mutants bench release clean trainers

demo: $(VENV)/.ready        ## refine real input with no key and no network
	@$(BIN)/redraft demo

test: $(VENV)/.ready-test   ## run the tests except those marked slow; SLOW=SEED/SHARE adds a share of these, chosen by the seed
	@echo "The tests take about six minutes on two cores; a percentage ends each line." >&2
	@$(PYTEST) --slow $(SLOW)

test-all: $(VENV)/.ready-test ## run all tests
	@$(PYTEST)

test-skipped: $(VENV)/.ready-test ## run the tests that the last run skipped, after what they need was installed
	@$(PYTEST) --skipped

test-shuffled: $(VENV)/.ready-test ## look for tests that depend on order or load: SEED chooses the order, four workers for each core are the load
	@echo "make test-shuffled SEED=$(SEED)"
	@$(PYTEST) --slow $(SLOW) --shuffle $(SEED) --numprocesses $$((4 * $$(getconf _NPROCESSORS_ONLN)))

SEED ?= $(shell date +%F)

lowest: $(VENV)-lowest/.ready ## run the tests that depend on libraries with the oldest declared versions (Python 3.11)
	@$(VENV)-lowest/bin/python -m pytest --numprocesses auto --dist loadfile -p no:cacheprovider $(AT_LOWEST)

AT_LOWEST := tests/tables tests/storage tests/requirements tests/graders/test_registry.py tests/graders/test_json_reader.py \
	tests/validation/test_known_values.py tests/validation/test_statistics.py tests/wire/test_chat_real.py tests/wire/test_http_hostile.py tests/wire/test_providers.py tests/wire/test_stream_caps.py \
	tests/test_compute.py tests/test_forks.py tests/test_licences.py tests/test_surface.py

check: lint types test      ## lint, types and tests: all must pass before a change is submitted

lint: $(VENV)/.ready-test   ## ruff, the layers of imports, and the size and shape of the code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/code_size.py

types: mypy pyright         ## mypy, strict, and pyright

mypy: $(VENV)/.ready-test
	@$(BIN)/mypy

pyright: $(VENV)/.ready-test
	@$(BIN)/basedpyright --pythonpath $(BIN)/python

docs: $(VENV)/.ready-test $(VENV)/.ready-docs ## check the generated parts, run every code block, build the site into build/site
	@$(BIN)/python scripts/docs.py --check
	@$(BIN)/python -m pytest tests/test_docs.py tests/test_examples.py
	@$(MAKE) --no-print-directory site

site: $(VENV)/.ready-docs   ## build the documentation site alone; a broken link is an error (with --quiet, mkdocs would not count it)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

cover: $(VENV)/.ready-test  ## run the tests with branch coverage
	@$(BIN)/python -m pytest --cov --cov-report=term:skip-covered

mutants: $(VENV)/.ready-test ## change the code in N small ways, one at a time, and list the changes that no test notices
	@$(BIN)/python scripts/mutants.py --packages $(PACKAGES) -n $(N) --seed $(SEED) $(if $(TESTS),--tests $(TESTS)) --slow $(SLOW)

PACKAGES ?= middleware=2 runs storage=2 validation=2 comparison
N ?= 40

clients: $(VENV)/.ready-test ## run coding agents, SDKs and frameworks through a gateway; ONLY=codex: those with that in their name
	@mkdir -p build/clients
	@$(BIN)/python clients/run.py --only "$(ONLY)" --output build/clients/matrix.md

adapters: $(VENV)-adapters/.ready ## run the tests of adapters against the frameworks that they are for, in an environment of their own
	@$(VENV)-adapters/bin/python -m pytest -W default -p no:cacheprovider tests/adapters

trainers: $(VENV)-trainers/.ready ## load exports in the data pipelines of trainers (TRL, Axolotl, LLaMA-Factory), in an environment of their own
	@$(VENV)-trainers/bin/python -m pip install -q --no-deps $(PINNED) # they pin other versions of what they share
	@$(VENV)-trainers/bin/python -m pytest -W default -p no:cacheprovider tests/trainers

PINNED := axolotl==0.19.0 llamafactory==0.9.5

bench: $(VENV)/.ready-test  ## measure startup and overhead on this machine; see bench/README.md
	@$(BIN)/python bench/startup.py
	@$(BIN)/python bench/overhead.py

release: $(VENV)/.ready-release ## build, check the metadata, test the wheel in a fresh environment; uploads nothing
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*
	@PYTHON=$(CURDIR)/$(BIN)/python sh scripts/check_wheel.sh dist/*.whl

$(VENV)/.ready: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) .
	@touch $@

$(VENV)/.ready-test: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) '.[test,lint]'
	@$(BIN)/python -m compileall -q src # the sources and the tests once, rather than by each process that runs tests
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only >/dev/null || true
	@touch $@ $(VENV)/.ready

$(VENV)/.ready-release: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) '.[release]'
	@touch $@ $(VENV)/.ready

$(VENV)/.ready-docs: pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) '.[docs]'
	@touch $@ $(VENV)/.ready

$(VENV)-lowest/.ready: pyproject.toml scripts/setup.sh scripts/lowest.py
	@mkdir -p build
	@python3.11 scripts/lowest.py > build/lowest.txt
	@PYTHON=python3.11 PIP_CONSTRAINT=$(CURDIR)/build/lowest.txt UV_CONSTRAINT=$(CURDIR)/build/lowest.txt \
		sh scripts/setup.sh $(VENV)-lowest '.[test]'
	@touch $@

$(VENV)-%/.ready: tests/%/requirements.txt pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV)-$* . $<
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
