# Two commands do everything: `make demo` and `make test`. The others are parts of them, or run by hand.
PYTHON ?= python3
PYTEST  = .venv-test/bin/python -m pytest

.PHONY: demo test acceptance faults lowest bench lint types check clean help

help:  ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s:

demo: .venv/ready  ## three Scrapyd nodes, a demo site, one crawl spread over them, one item file
	.venv/bin/sdist demo

test: .venv-test/ready  ## unit and contract tests, and one acceptance path per command (under 10 minutes)
	$(PYTEST) -m "not black_box"

acceptance: .venv-test/ready  ## the black-box rows against real nodes (under 40 minutes)
	$(PYTEST) -m black_box

faults: .venv-test/ready  ## the bad days only: killed nodes, workers, producers, broken connections
	$(PYTEST) $(addprefix tests/acceptance/test_,bad_days.py bad_answers.py dead_batches.py payload_limits.py resume.py signals.py)

lowest:  ## the crawl tests on the lowest versions that the README promises
	PYTHON=$(PYTHON) sh tests/lowest.sh

bench: .venv-test/ready  ## the README's benchmark (about an hour; the machine should have nothing else to do)
	.venv-test/bin/python benchmarks/run.py

lint: .venv-test/ready  ## ruff
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .

types: .venv-types/ready  ## mypy, on a regular install: an editable one hides cli/, middlewares/ and deploy/ from it
	.venv-types/bin/mypy

check: lint types test  ## what must be green before a change goes in

clean:  ## remove the environments and caches
	rm -rf .venv .venv-test .venv-types .pytest_cache .mypy_cache .ruff_cache build *.egg-info sdist-demo

define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or later is needed; name one: make PYTHON=python3.12 …"; exit 2; }
	@$(PYTHON) -m venv $(1) || { echo "$(PYTHON) cannot make environments: install its venv package (Debian: apt install python3-venv)"; exit 2; }
	@echo "Installing into $(1) …"
	@$(1)/bin/python -m pip install -qq --disable-pip-version-check --upgrade pip
endef

.venv/ready: pyproject.toml $(shell git ls-files '*.py')
	$(call environment,.venv)
	@.venv/bin/python -m pip install -qq --editable '.[local]'
	@touch $@

.venv-test/ready: pyproject.toml
	$(call environment,.venv-test)
	@.venv-test/bin/python -m pip install -qq --group test --group lint --editable '.[local]'
	@touch $@

.venv-types/ready: pyproject.toml $(shell git ls-files '*.py')
	$(call environment,.venv-types)
	@.venv-types/bin/python -m pip install -qq --group test --group lint '.[local]'
	@touch $@
