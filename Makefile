# Everything that a person needs: `make demo`, `make test`. Both set up what they need first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { echo $$p; break; }; done)
PY := .venv/bin/python
STAMP := .venv/installed
T ?=
CORES := $(shell nproc 2>/dev/null || echo 1)
# Two more than there are cores, up to four: processes that wait for Spark, a daemon or a timer leave a core to others.
PROCESSES ?= $(shell echo $$(($(CORES) < 3 ? $(CORES) + 2 : 4)))
# Folders by cost. Files of those left out are not imported.
TEST := -m "not nightly" --ignore tests/nightly
APART := nightly engine e2e cli node
QUICK := -m "not engine and not e2e and not slow and not nightly" $(foreach each,$(APART),--ignore tests/$(each))
# A single file runs in this process: others would only import the same.
AIMED := $(filter tests/%,$(T))
alone = $(if $(and $(filter 1,$(words $(AIMED))),$(findstring .py,$(AIMED))),0,$(1))
# Without bytecode, hundreds of processes would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test quick nightly check check-fast lint types engine engine-image bench soak docs lock clean collect foreign azurite anvil s5cmd kafka api reference wheel lock-image deb demo-node debian-root image ui

help:  ## list what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

install: $(STAMP)  ## a virtual environment in .venv with odfd and odfctl; instant when nothing changed

$(STAMP): pyproject.toml requirements/lock.txt requirements/bootstrap.txt bin/install
	@PYTHON="$(PYTHON)" bash bin/install
	touch $@

demo: install  ## the main job on real nodes and real data; KEEP=1 leaves the nodes up
	@$(PY) -m demo $(if $(KEEP),--keep)

test: install  ## all tests, in a process a core and two more; T='-n 0 --pdb tests/…' for one at a time
	@$(if $(T),,$(PY) -m engines.provision.archive)  # a copied .venv has an archive of other jars; instant otherwise
	$(PY) -m pytest -n $(call alone,$(PROCESSES)) --dist loadfile --no-loadscope-reorder $(if $(filter tests/nightly%,$(T)),,$(TEST)) $(T)

quick: install  ## in a minute: no Spark, no daemons, no whole nodes, nothing slow; a fifth of the examples of properties
	@echo "left out: tests in $(APART), and those marked engine, e2e, slow or nightly; make test has all but those of nightly"
	@$(PY) -m pytest -n $(call alone,$(PROCESSES)) --dist loadfile $(QUICK) --hypothesis-profile quick $(T)

nightly: install  ## all that make test has, and what it leaves out: foreign programs, benches, packages, more of all that is random
	@$(NUMBERS) $(PY) -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --hypothesis-profile nightly $(T)

collect: install
	@$(PY) -m pytest --collect-only -qq $(TEST) | tail -5

foreign: install
	@PYTHONPATH=tests nice $(PY) tests/worlds/foreign.py

lint: install
	@$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	PYTHONPATH=tests $(PY) -m worlds.prose

types: install
	@$(PY) -m mypy

check: lint types test  ## lint, types, all tests of make test

check-fast: lint types quick  ## what one runs before a commit

bench: install  ## figures as ratios in one run; a table, and JSON in out/bench.json
	@$(PY) -m bench $(T)

# What make soak has, in small.
NUMBERS := ODF_SIM_SEEDS=300 ODF_FAULT_RUNS=300 ODF_FLIPS=600 ODF_FUZZ=20000 ODF_ENGINE_RUNS=60 ODF_REQUESTS=60 ODF_SOAK=3 ODF_SOAK_SECONDS=300 ODF_SIEGE_SECONDS=120

soak: install  ## ten thousand simulated networks of each kind, faulty lives, flipped bits; 200,000 mutants a decoder; five daemons in bad weather, three under siege, fifty lives of one that takes from each kind of source; 2,000 histories a query shape, 4,000 random queries; hours
	@ODF_SIM_SEEDS=10000 ODF_FAULT_RUNS=10000 ODF_FLIPS=20000 ODF_FUZZ=200000 ODF_ENGINE_RUNS=2000 ODF_SOAK=20 ODF_REQUESTS=200 ODF_SIEGE_SECONDS=3600 $(PY) -m pytest --timeout 7200 tests/sim tests/fuzz tests/e2e/node/test_five_nodes.py tests/e2e/node/test_killed_sources.py tests/e2e/node/test_siege.py tests/e2e/node/test_strangers.py tests/node/test_mending.py tests/node/test_api.py tests/unit/odfd/kamu/test_questions.py tests/unit/engines/flight tests/unit/engines/query/test_statement_check.py tests/engine/transform $(T)

# What packages and images are made of: they are made again when one of these is newer.
INPUTS := $(shell git ls-files odfd p2p chain engines config client package systemd requirements pyproject.toml 2>/dev/null)

engine-image: $(if $(LOCK),lock-image,.venv/share/odfd/engine-image.made)  ## the engine image, to the same digest from the same inputs; LOCK=1 takes what Debian has now

.venv/share/odfd/engine-image.made: $(STAMP) $(INPUTS)
	@$(PY) -m engines.image.build
	$(PY) -m engines.provision.preparation
	touch $@

lock-image: install
	@$(PY) -m engines.image.build --lock
	$(PY) -m engines.provision.preparation

wheel: install  ## out/odfd-*.whl: one package, with units, man pages and completions; twice the same bytes
	@$(PY) -m package wheel

deb: out/deb.made  ## out/odfd*.deb: a node without an engine, with all that it needs beside Python; SQL; a recorded node

out/deb.made: $(STAMP) $(INPUTS) $(wildcard out/demo)
	@$(PY) -m package deb
	touch $@

demo-node: install  ## out/demo: the node of the demo that odfctl demo shows; make deb packs it
	@$(PY) -m demo --record out/demo

debian-root: install  ## out/debian-root.tar: a Debian in which tests try the package (needs mmdebstrap)
	@$(PY) -m package debian-root

image: out/image.made  ## out/image: an OCI image of a node without an engine, to the same digest from the same source

out/image.made: $(STAMP) $(INPUTS)
	@$(PY) -m package image
	touch $@

docs: reference  ## out/site: the documentation as a site with search; every link is checked
	@$(PY) -m package site

ui: install  ## libraries of the page, from npm as package/page locks them; the same bytes each time
	@$(PY) -m package ui

azurite:  ## Microsoft's emulator of Azure's blobs from npm into .venv/share/odfd/azurite, for tests of them (needs node and npm)
	@npm install --silent --no-audit --no-fund --ignore-scripts --prefix .venv/share/odfd/azurite azurite@3.35.0

anvil:  ## Foundry's node of Ethereum from npm into .venv/share/odfd/anvil, for tests of logs of a chain (needs npm; Linux)
	@npm install --silent --no-audit --no-fund --ignore-scripts --prefix .venv/share/odfd/anvil @foundry-rs/anvil@1.7.1

s5cmd:  ## s5cmd from the Go module proxy into .venv/share/odfd/s5cmd, for a measurement against it (needs go)
	@mkdir -p .venv/share/odfd/s5cmd && cd .venv/share/odfd/s5cmd && printf 'module odfd.bench/s5cmd\n\ngo 1.21\n' > go.mod \
	&& go mod download github.com/peak/s5cmd/v2@v2.3.0 \
	&& rm -rf source && cp -r "$$(go env GOMODCACHE)/github.com/peak/s5cmd/v2@v2.3.0" source && chmod -R u+w source && rm -rf source/vendor \
	&& cd source && CGO_ENABLED=0 GOFLAGS='-mod=mod -buildvcs=false' go build -o ../s5cmd . && cd .. && rm -rf source

kafka:  ## a broker of Kafka from Maven into .venv/share/odfd/kafka, for tests of it (needs mvn and Java 17)
	@mvn -q -B -f tests/worlds/kafka.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.venv/share/odfd/kafka

api: install  ## what is made of operations and wire: where each value is, openapi.json, and the calls of odfctl; BREAK=1 takes back a promise
	@$(PY) -m odfd.api.wire_names
	$(PY) -m odfd.api.openapi $(if $(BREAK),--break)
	$(PY) -m odfd.api.calls

reference: install  ## docs/reference and docs/schemas: commands, settings, rules, metrics, functions, types, attacks, code map; each from its one declaration
	@$(PY) -m package.reference

lock:  ## resolve requirements/*.txt anew (needs uv)
	@.venv/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --extra all --extra java --extra demo --extra ipfs-client --extra dev pyproject.toml -o requirements/lock.txt
	.venv/bin/python -m package lock
	printf 'uv\nsetuptools==84.2.1\nwheel\n' | .venv/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header - -o requirements/bootstrap.txt

clean:
	@rm -rf .venv out build *.egg-info
