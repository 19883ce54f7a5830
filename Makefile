# Set-up, checks and tests. Needs Python 3.11+ and make, nothing else; everything is put into folders that git ignores.
#   make demo    a tour of a small server            make test    everything that CI runs
#   make test-long    everything, with the campaigns, soak and timing tests that `make test` leaves out; random choices
#                     follow a new seed each time, which is printed (SEED=… repeats a run)
#   make test-delays  the same as `make test`, with random delays of callbacks, timers and threads (SEED=… varies them)
#   make test-minimum the core of the suite with the lowest versions of all dependencies that pyproject.toml allows
#   make check   format, lint, types, imports        make bench   cost per request, beside peers (PYTHON=… picks the CPython)
#                                                                  and the way to a first call; or beside one of our own commits (BASE=…)
#   make fuzz    a longer run of the fuzzers         make rows    acceptance rows that no test names yet
#   make chaos   servers are killed, stopped, cut off and worse under 200 clients, time and again (DEPLOYMENT=all, file, workers, valkey or sentinel;
#                SEED=…, CLIENTS=…, ROUNDS=…)
#   make test-upgrade BASE=<commit>    the same with every other process of an older release, on one store
#   make dist    sdist and wheel in dist/, checked and tried in empty environments (PYTHONS="python3.11 …"; RELEASE=1 also
#                demands the tag of the version, its notes and all Pythons that the package names)
#   make conformance, make conformance-old    the official suite, scenario by scenario; the second is suite 0.1.16
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PEERS  := .peers
PIP    := -m pip install --quiet --disable-pip-version-check
JOBS   ?= auto
MINIMUM := .cache/minimum
CORE    := tests/unit tests/property tests/contract tests/spec tests/attacks

# The tests start hundreds of Python processes, each of which would otherwise compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long test-delays test-minimum test-upgrade check bench fuzz chaos rows docs conformance conformance-old dist clean
.DELETE_ON_ERROR:

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python $(PIP) --editable '.[auth,cli,http,otel,redis,speed,dev]'
	touch $@

# Each peer lives in an environment of its own, so that its dependencies never meet ours.
$(PEERS)/%/.ready: tests/interop/peers/%.txt
	$(PYTHON) -m venv --clear $(PEERS)/$*
	$(PEERS)/$*/bin/python $(PIP) --requirement $<
	touch $@

$(PEERS)/node/.ready: tests/interop/peers/package.json | $(VENV)/.ready
	mkdir -p $(PEERS)/node
	cp tests/interop/peers/package.json $(PEERS)/node/
	cd $(PEERS)/node && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --silent --no-audit --no-fund --no-package-lock
	touch $@

# Servers and clients of the table, as far as `make test` needs them, and all of them.
$(PEERS)/packages/.ready: tests/interop/packages.toml $(PEERS)/uv/.ready $(PEERS)/node/.ready | $(VENV)/.ready
	$(BIN)/python -m tests.interop.packages
	touch $@

$(PEERS)/packages/.all: tests/interop/packages.toml $(PEERS)/uv/.ready $(PEERS)/node/.ready | $(VENV)/.ready
	$(BIN)/python -m tests.interop.packages all
	touch $@

.cache/schemas/.ready: tools/official_schemas.mjs $(PEERS)/node/.ready
	mkdir -p .cache/schemas
	$(BIN)/node tools/official_schemas.mjs $(PEERS)/node .cache/schemas
	touch $@

demo: $(VENV)/.ready
	$(BIN)/python examples/tour.py

test: check $(PEERS)/mcp/.ready $(PEERS)/mcp-1/.ready $(PEERS)/packages/.ready .cache/schemas/.ready
	rm -rf .cache/coverage && mkdir -p .cache/coverage
	$(BIN)/python -m pytest -p tests.measurement --coverage -n $(JOBS) --dist worksteal tests
	$(BIN)/python tools/coverage_gates.py

test-long: SEED ?= $(shell $(PYTHON) -c 'import secrets; print(secrets.randbelow(1 << 32))')
test-long: check $(PEERS)/mcp/.ready $(PEERS)/mcp-1/.ready $(PEERS)/packages/.all .cache/schemas/.ready
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "long or not long" --hypothesis-profile=long --hypothesis-seed=$(SEED) tests

test-delays: SEED ?= 1
test-delays: check $(PEERS)/mcp/.ready $(PEERS)/mcp-1/.ready $(PEERS)/packages/.ready .cache/schemas/.ready
	$(BIN)/python -m pytest -p tests.delays --delays $(SEED) -n $(JOBS) --dist worksteal tests

$(MINIMUM)/.ready: pyproject.toml tools/minimum_versions.py
	$(PYTHON) -m venv --clear $(MINIMUM)
	$(PYTHON) tools/minimum_versions.py > $(MINIMUM)/constraints.txt
	$(MINIMUM)/bin/python $(PIP) --constraint $(MINIMUM)/constraints.txt --editable '.[auth,cli,http,otel,redis,speed,dev]'
	touch $@

test-minimum: $(MINIMUM)/.ready .cache/schemas/.ready
	$(MINIMUM)/bin/python -m pytest -n $(JOBS) --dist worksteal $(CORE)

check: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright
	$(BIN)/python tools/generated.py --check
	$(BIN)/python tools/public_api.py --check
	$(BIN)/python tools/changelog.py --check

docs: $(VENV)/.ready
	$(BIN)/python tools/public_api.py
	$(BIN)/python tools/generated.py
	$(BIN)/python tools/changelog.py

bench:
	$(PYTHON) -m bench.run --python "$(PYTHON)" $(if $(BASE),--base "$(BASE)")
	$(if $(BASE),,$(PYTHON) -m bench.first_steps --python "$(PYTHON)")

fuzz: $(VENV)/.ready
	$(BIN)/python -m tests.fuzz.run

test-upgrade: $(VENV)/.ready
	$(if $(BASE),,$(error make test-upgrade needs BASE=<commit>, the release that serves beside this one))
	$(BIN)/python -m tests.chaos.run --base $(BASE) --clients $(or $(CLIENTS),60) --rounds $(or $(ROUNDS),10) $(if $(DEPLOYMENT),--deployment $(DEPLOYMENT)) $(if $(SEED),--seed $(SEED))

chaos: $(VENV)/.ready
	$(BIN)/python -m tests.chaos.run $(if $(DEPLOYMENT),--deployment $(DEPLOYMENT)) $(if $(SEED),--seed $(SEED)) $(if $(CLIENTS),--clients $(CLIENTS)) $(if $(ROUNDS),--rounds $(ROUNDS))

rows:
	@$(PYTHON) tools/rows.py

conformance: $(PEERS)/node/.ready
	@$(BIN)/python -m tests.conformance.run

conformance-old: $(PEERS)/node/.ready
	@$(BIN)/python -m tests.conformance.run --old

dist:
	$(PYTHON) tools/dist.py $(if $(PYTHONS),--pythons "$(PYTHONS)") $(if $(RELEASE),--release)

clean:
	rm -rf $(VENV) $(PEERS) .cache dist .pytest_cache .ruff_cache .hypothesis
