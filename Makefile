# A machine with Python 3.10 to 3.14 and Java >= 17 is enough. `make` lists the commands.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
# One more than two cores: now and then a test waits for a disk or for a process to end.
WORKERS ?= 3
READY := $(VENV)/ready
PATHS := PYTHONPATH=docker/local:scripts$(PYTHONPATH:%=:%)
# Of all but chaos. To collect the tests of the other folders takes as long again.
JVM := $(addprefix tests/,conformance e2e faults integration properties stack)

.PHONY: help venv browser jars test test-plain test-spark test-brokers test-chaos test-long test-fast lint demo pictures bench chaos stack-up stack-down clean check-python check-java
.DEFAULT_GOAL := help
# Otherwise each of some thousand Python processes compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo        exactly once, shown: Kafka, Spark, Airflow; kills a task and a Spark server (4 minutes)"
	@echo "make test        lint and every test but the long ones (half an hour)"
	@echo "make test-long   what other tests show, in more modes, examples and ways of running (two hours and more)"
	@echo "make test-fast   one case of each quick test of a unit or the protocol: no server (a minute)"
	@echo "make lint        formatter, types, the arrows between rooms (2 minutes, then 20 s)"
	@echo "make test-plain  of \`make test\`: what needs no Java (8 minutes); test-spark, test-brokers: the rest (10 minutes each)"
	@echo "make chaos       MINUTES=3 SEED=…: breaks the whole system for so long, and judges (MINUTES + 6 minutes)"
	@echo "make bench       ONLY=…: the measurements, as a table and as bench.json (ONLY=spark_figures: 3 minutes; all: more than an hour)"
	@echo "make stack-up    start Kafka, Spark Connect and Airflow (make stack-down ends them; a minute)"
	@echo "make pictures    make the README's pictures of the Epochs page anew (a minute)"
	@echo "make venv        .venv with the versions of constraints.txt (2 minutes); other targets make it first"
	@echo "make jars        the jars of Spark, Kafka and the registry (2 minutes; make test does it too)"
	@echo "make browser     install Debian's Chromium and chromedriver, if there is no browser (make test does it too)"
	@echo "make clean       remove .venv, .stack and caches"
	@echo "The times are those of two cores; that of the demo includes all downloads."

venv: $(READY)

# The pip that comes with Python may be too old for --group.
$(READY): pyproject.toml constraints.txt | check-python
	$(PYTHON) -m venv $(VENV)
	$(if $(HASHES),$(PIP) --require-hashes --no-deps -r constraints.hashed.txt)
	$(PIP) -c constraints.txt pip
	$(PIP) -c constraints.txt -e '.[all]' --group dev
	touch $@

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' || \
	  { echo "Python 3.10 to 3.14 is needed; name one: make PYTHON=python3.11 ..." >&2; exit 1; }

check-java:
	@major=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	  [ "$${major:-0}" -ge 17 ] || { echo "Java 17 or newer is needed on the PATH (found: $${major:-none})." >&2; exit 1; }

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: venv check-java
	rm -rf build/cells
	$(MAKE) --no-print-directory --jobs=4 $(SYNC) lint test-plain browser jars
	$(MAKE) --no-print-directory --jobs=2 $(SYNC) test-spark test-chaos
	$(BIN)/python scripts/fault_table.py --check

# What needs no Java.
test-plain: venv
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not jvm and not e2e and not long"

jars: venv
	$(BIN)/python docker/local jars
	$(BIN)/python docker/local classes

# For the tests of the page. Where a browser and its driver are there already, this needs no rights.
browser:
	@{ command -v chromium || command -v google-chrome; } >/dev/null && command -v chromedriver >/dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null; }

# Side by side: the Connect server of the one keeps a core and a half busy, the others mostly wait.
test-spark test-brokers: test-%: venv check-java browser
	$(BIN)/python -m pytest -m "$* and not long" $(JVM)

test-long: venv check-java jars
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "long and not jvm and not e2e"
	$(BIN)/python -m pytest -m "long and (jvm or e2e)" $(JVM)

# After the brokers, beside Spark: so two cores are never left to one of them.
test-chaos: test-brokers
	$(BIN)/python -m pytest -s -m chaos tests/chaos

test-fast: venv
	$(BIN)/python -m pytest -n logical --dist worksteal --first-cases -m "not jvm and not proof and not long" tests/unit tests/protocol tests/conformance

demo: venv check-java
	$(PATHS) $(BIN)/python scripts/demo.py

pictures: venv browser
	$(PATHS):. $(BIN)/python scripts/pictures.py

bench: venv check-java
	$(PATHS) $(BIN)/python -m tests.perf.bench $(if $(ONLY),--only $(ONLY))

chaos: venv check-java
	$(PATHS) $(BIN)/python -m tests.chaos.chaos --minutes $(or $(MINUTES),3) $(if $(SEED),--seed $(SEED))

stack-up: venv check-java
	$(BIN)/python docker/local up

stack-down: venv
	$(BIN)/python docker/local down

# Without .venv nothing can end a stack that runs, and without .stack nobody finds its processes.
clean:
	@[ -e $(READY) ] || [ ! -e .stack/state.json ] || \
	  { echo "A stack may run, and .venv cannot end it. What to do: type \`make venv\`, then \`make clean\`." >&2; exit 1; }
	[ ! -e $(READY) ] || $(BIN)/python docker/local down
	rm -rf $(VENV) .stack .pytest_cache .mypy_cache .ruff_cache
