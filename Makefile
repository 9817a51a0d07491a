# Each target makes the environment that it needs by itself; nothing is installed again until the pins change.

VENV := .venv
PY := $(VENV)/bin/python
UV := $(PY) -m uv
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready

# Processes of the test suite: the machines it is meant for have two cores.
JOBS ?= 2
# What `make test` runs; any marker expression of pytest will do: make test MARKS=slow
MARKS ?= not browser and not postgres and not slow
# Passed on: make run ARGS=--empty, make test ARGS="-k quota"
ARGS ?=
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

# What was downloaded before is taken from the cache without asking anybody; the rest is fetched.
INSTALL := $(UV) pip install --quiet --python $(PY)

PYTEST := $(PY) -m pytest
IN_PARALLEL := -n $(JOBS) --dist worksteal
# The tools that read sources instead of being started by manage.py or pytest have to be told of the second source root.
SOURCES := PYTHONPATH=platform

.DEFAULT_GOAL := help
.PHONY: help run test test-nightly test-postgres test-browser format bench requirements clean
.PHONY: lint lint-style lint-format lint-types lint-imports lint-migrations lint-words

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

run: $(RUN_READY) ## start Allotment here (HOST, PORT, ARGS="--empty --data DIR")
	@exec $(PY) manage.py up $(ARGS)

test: $(DEV_READY) ## the everyday suite, on SQLite (ARGS, MARKS, JOBS)
	@echo "Running what is marked: $(MARKS)"
	@echo "Others have their own target: make test-postgres, make test-browser, make test MARKS=slow"
	@test -n "$$ALLOTMENT_TRACES" || echo "ALLOTMENT_TRACES names no folder: tests that read public traces will be skipped"
	@$(PYTEST) $(IN_PARALLEL) -m "$(MARKS)" $(ARGS)

# What touches no database is the same on any.
NO_DATABASE := $(addprefix --ignore=tests/,core workload engines)
test-postgres: $(DEV_READY) ## the suite on PostgreSQL and Redis (those of DATABASE_URL and REDIS_URL, or its own)
	@.ci/with-services $(PYTEST) $(IN_PARALLEL) -m "not browser and (postgres or not slow)" $(NO_DATABASE) $(ARGS)

test-browser: export CHROMIUM := $(CHROMIUM)
test-browser: $(DEV_READY) ## the suite in a real browser (CHROMIUM says where it is)
	@test -x "$(CHROMIUM)" || { echo "No Chromium found. Install it, or say where it is: CHROMIUM=/path/to/chromium" >&2; exit 1; }
	@$(PYTEST) -m browser $(ARGS) || { code=$$?; \
	  test $$code -eq 5 && ! grep -rqs 'mark\.browser' tests && echo "No browser test exists yet: nothing was driven."; }

test-nightly: $(DEV_READY) ## ten times as many random lives of an installation as CI lives through
	@ALLOTMENT_LIVES=nightly $(PYTEST) $(IN_PARALLEL) tests/properties $(ARGS)

# One target a check, so that `make --keep-going lint` tells of all of them.
lint: lint-style lint-format lint-types lint-imports lint-migrations lint-words ## style, format, types, who imports whom, migrations, words

lint-style: $(DEV_READY)
	$(PY) -m ruff check .

lint-format: $(DEV_READY)
	$(PY) -m ruff format --check .

lint-types: $(DEV_READY)
	$(SOURCES) $(PY) -m mypy

lint-imports: $(DEV_READY)
	$(SOURCES) $(PY) -c "from importlinter.cli import lint_imports_command as lint; lint()" --no-logo

lint-migrations: $(DEV_READY)
	DJANGO_SETTINGS_MODULE=config.settings.test DATABASE_URL=sqlite://:memory: $(PY) manage.py makemigrations --check --dry-run

lint-words:
	.ci/words

format: $(DEV_READY) ## mend what ruff can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(RUN_READY) ## placement on the public trace (ALLOTMENT_TRACES names the folder of traces)
	@test -d "$$ALLOTMENT_TRACES/alibaba-gpu-v2023" || { \
	  echo "Set ALLOTMENT_TRACES to the folder that holds alibaba-gpu-v2023, the public trace." >&2; exit 1; }
	@$(PY) manage.py bench placement --trace "$$ALLOTMENT_TRACES/alibaba-gpu-v2023" --json $(ARGS)

COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header --no-emit-index-url pyproject.toml
requirements: $(DEV_READY) ## pin anew what pyproject.toml asks for (ARGS=--upgrade takes newer versions)
	$(COMPILE) --output-file requirements.txt $(ARGS)
	$(COMPILE) --group dev --constraint requirements.txt --output-file requirements-dev.txt $(ARGS)

clean: ## remove the environment and the caches; data stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN_READY): requirements.txt
	@.ci/environment
	@echo "Installing the packages of $< …"
	@$(INSTALL) --offline --requirement $< 2>/dev/null || $(INSTALL) --requirement $<
	@touch $@

$(DEV_READY): requirements-dev.txt $(RUN_READY)
	@echo "Installing the packages of $< …"
	@$(INSTALL) --offline --requirement $< 2>/dev/null || $(INSTALL) --requirement $<
	@touch $@
