# Two commands do everything: `make demo` and `make test`. The others are parts of them, or run by hand.
PYTHON ?= python3
# Without it each of some thousand processes would compile this project anew.
unexport PYTHONDONTWRITEBYTECODE
# Pytest's workers share the test files, the longest first (tests/durations.json).
WORKERS ?= 3
TESTS   = .venv-test/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 10 --durations-min 1

.PHONY: demo servers test acceptance full durations faults soak fuzz mutants lowest wheel wheels bench pictures manual docs lint types check clean help

help:  ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s:

demo: .venv/ready  ## three Scrapyd nodes, a demo site, one crawl spread over them, one item file
	.venv/bin/sdist demo

servers:  ## a Redis server and a browser for the tests (apt as root, else it names what is missing)
	@sh tests/servers.sh

test: .venv-test/ready servers  ## unit and contract tests, and one acceptance path per command (at most 6 minutes on two cores)
	$(TESTS) -m "not black_box and not full"

acceptance: .venv-test/ready servers  ## the core of the rows with real processes: each promise, each command (at most 15 minutes)
	$(TESTS) -m "black_box and not full"

full: .venv-test/ready servers  ## all that there is, before a release (about an hour): every row, mutants, lowest versions, wheel
	$(TESTS)
	$(MAKE) mutants lowest wheels

durations: .venv-test/ready servers  ## every row, writing the seconds of each test file into tests/durations.json
	$(TESTS) --record-durations

faults: .venv-test/ready servers  ## breaks 36 real crawls at random moments and counts what was lost (about 15 minutes; root for the full disk)
	.venv-test/bin/python tests/faults

soak: .venv-test/ready servers  ## an hour of crawls, a consumer and plain jobs with random faults: what is lost, left over, or grows
	.venv-test/bin/python tests/faults --soak

fuzz: .venv-test/ready  ## has nodes answer 4,000 commands with what is wrong, huge or evil (more than 10,000 answers)
	SDIST_FUZZ_COMMANDS=4000 $(TESTS) -n 0 -m black_box -o timeout=7200 tests/acceptance/test_hostile_nodes.py -k many

lowest:  ## the tests of crawls and of the nodes' commands on the lowest versions that the README promises
	PYTHON=$(PYTHON) sh tests/lowest.sh

wheel: .venv-test/ready  ## the wheel and the source archive, in dist/: compared with the repository, and tried on the lowest versions
	PATH="$(CURDIR)/.venv-test/bin:$$PATH" sh tests/wheel.sh

wheels: .venv-test/ready  ## the same on Python 3.10, 3.12 and 3.14
	PATH="$(CURDIR)/.venv-test/bin:$$PATH" sh tests/wheel.sh 3.12 3.14

mutants: .venv-test/ready servers  ## breaks rules of the program, one at a time, and sees that their tests fail
	.venv-test/bin/python tests/mutants.py

bench: .venv-test/ready  ## the seven benchmarks that docs/explanation/benchmarks.md quotes (about an hour; the machine should have nothing else to do)
	.venv-test/bin/python benchmarks/run.py --ways bound-usual,scrapy-redis2-usual,sdist2,push2
	.venv-test/bin/python benchmarks/run.py --ways bound-usual,sdist2 --items 20000
	.venv-test/bin/python benchmarks/run.py --ways bound-usual,scrapy-redis2-usual,sdist2 --items 50000
	.venv-test/bin/python benchmarks/link_events.py --links 0
	.venv-test/bin/python benchmarks/phases.py --pairs 7
	.venv-test/bin/python benchmarks/worker.py --pairs 3
	.venv-test/bin/python benchmarks/deploys.py --pairs 3
	.venv-test/bin/python benchmarks/frontier_store.py --requests 20000 --many 1000000
	.venv-test/bin/python benchmarks/broad.py

pictures: .venv-test/ready servers  ## the pictures of README and docs, of a demo crawl on this machine
	.venv-test/bin/python docs/pictures.py

manual: .venv-test/ready  ## what is generated in docs/reference: commands, settings, JSON documents
	.venv-test/bin/python -m scrapyd_dist.cli.manual docs/reference/commands
	PYTHONPATH=tests .venv-test/bin/python -m rig.document_schemas docs/reference

docs: .venv-docs/ready  ## the documentation site, in build/docs/; any warning is an error
	.venv-docs/bin/sphinx-build --quiet --jobs auto --fail-on-warning --keep-going -d build/doctrees docs build/docs

lint: .venv-test/ready  ## ruff
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .

types: .venv-types/ready  ## mypy, on a regular install: an editable one hides cli/, middlewares/ and deploy/ from it
	.venv-types/bin/mypy

check: lint types test  ## what must be green before a change goes in

clean:  ## remove the environments and caches
	rm -rf .venv .venv-test .venv-types .venv-docs .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info sdist-demo

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
	@.venv-test/bin/python -m pip install -qq --group test --group lint --group package --editable '.[local]'
	@touch $@

.venv-types/ready: pyproject.toml $(shell git ls-files '*.py')
	$(call environment,.venv-types)
	@.venv-types/bin/python -m pip install -qq --group test --group lint '.[local]'
	@touch $@

.venv-docs/ready: pyproject.toml
	$(call environment,.venv-docs)
	@.venv-docs/bin/python -m pip install -qq --group docs
	@touch $@
