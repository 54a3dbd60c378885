# Everything that a developer runs. `make` lists it; each target first installs what it needs into .venv.
# For GNU make 3.81 (macOS) and later, in a path with or without spaces: all paths here are relative.

PYTHON = python3
UV = .venv/bin/uv
ARGS =
LOCKFLAGS =

PIP = .venv/bin/python -m pip
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_NO_INPUT = 1
export PIP_USER = 0

.PHONY: help demo fleet drop watch simulate-check chaos bench bench-start bench-queue bench-ingest bench-gpu bench-words bench-windows bench-levels bench-decode bench-search bench-exporter bench-export bench-telemetry bench-memory fuzz docs audit test check setup lock clean venv
.NOTPARALLEL:

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: venv ## Transcribe sample recordings on this machine; no server, account or GPU needed
	$(call install,demo,demo dev,30 s)
	@.venv/bin/python -m workers.demo

fleet: setup ## Show a fleet on this machine: Postgres, Redis and S3 from wheels, two workers, one of them killed
	@.venv/bin/python -m infra.tryout fleet

drop: setup ## Show a drop folder on this machine: recordings appear in a bucket, subtitles beside them, webhooks are told
	@.venv/bin/python -m infra.tryout drop

watch: setup ## Show metrics and an alert: a Prometheus scrapes two workers under load, one of them is frozen
	@.venv/bin/python -m infra.tryout watch

simulate-check: setup ## Show a small load on a real fleet and in simulation, side by side
	@.venv/bin/python -m infra.tryout simulate-check

chaos: setup ## Kill workers at random for two minutes and check that nothing is lost; make chaos ARGS="--seconds 600"
	@.venv/bin/python -m infra.tryout chaos $(ARGS)

bench: setup ## Measure Spotscribe beside its peers and its own engine; ARGS="--manifest FILE.jsonl", with paths, texts, languages
	@.venv/bin/python -m tests.benchmarks.bench $(ARGS)

bench-start: setup ## Measure what a worker does from its start to its first decoded batch; ARGS="--rounds 10 --model base"
	@.venv/bin/python -m tests.benchmarks.bench_start $(ARGS)

bench-queue: setup ## Measure the queue: submitting, claims, checkpoints, a worker against run, takeover; ARGS="--only claims"
	@.venv/bin/python -m tests.benchmarks.bench_queue $(ARGS)

bench-ingest: setup ## Measure how long a bucket of 100 000 objects takes to list, and in how much memory; ARGS="--objects 10000"
	@.venv/bin/python -m tests.benchmarks.bench_ingest $(ARGS)

bench-gpu: setup ## Measure large models with random weights on a GPU, and real ones end to end; ARGS="--minutes 8 --json FILE"
	@.venv/bin/python -m tests.benchmarks.gpu $(ARGS)

bench-words: setup ## Measure how near word times come to where joined clips truly begin and end; ARGS="--manifest FILE.jsonl --models base"
	@.venv/bin/python -m tests.benchmarks.bench_words $(ARGS)

bench-windows: setup ## Measure which lengths of chunks and windows suit a model; ARGS="--manifest FILE.jsonl --model base"
	@.venv/bin/python -m tests.benchmarks.bench_windows $(ARGS)

bench-levels: setup ## Measure what quiet, rumbling, shifted and clipped sound costs, with the repair and without; ARGS="--manifest FILE.jsonl"
	@.venv/bin/python -m tests.benchmarks.bench_levels $(ARGS)

bench-decode: setup ## Measure what the decoder's isolation costs, for mp3 and mp4, long and short
	@.venv/bin/python -m tests.benchmarks.bench_decode $(ARGS)

bench-search: setup ## Measure how fast a million segments are written and searched; ARGS="--segments 100000"
	@.venv/bin/python -m tests.benchmarks.bench_search $(ARGS)

bench-telemetry: setup ## Measure what metrics and traces cost; ARGS="--recordings 300 --rounds 9 --paced"
	@.venv/bin/python -m tests.benchmarks.bench_telemetry $(ARGS)

bench-exporter: setup ## Measure what the exporter asks of a database with a million jobs; ARGS="--jobs 100000"
	@.venv/bin/python -m tests.benchmarks.bench_exporter $(ARGS)

bench-export: setup ## Measure what a million segments with their words take to Parquet; ARGS="--segments 100000"
	@.venv/bin/python -m tests.benchmarks.bench_export $(ARGS)

bench-memory: setup ## Measure whether memory grows with the number of recordings; ARGS="--manifest FILE.jsonl --recordings 1000"
	@.venv/bin/python -m tests.benchmarks.bench_memory $(ARGS)

fuzz: setup ## Decode broken files of many formats: each must end in a state; make fuzz ARGS="--files 5000 --seed 1000"
	@.venv/bin/python -m tests.faults.fuzz $(ARGS)

docs: setup ## Write the pages that are made from the code: docs/schema.md, docs/settings.md, docs/metrics.md
	@.venv/bin/python -m infra.pages

audit: setup ## Ask the OSV database whether a pinned version has a known vulnerability; says so where it is out of reach
	@.venv/bin/python -m infra.audit $(ARGS)

test: setup ## Run all tests, four at a time; make test ARGS="-k stitcher" passes options to pytest
	@.venv/bin/python -m pytest -n 4 --dist worksteal $(ARGS)

check: setup ## Lint, formatting, types, the direction of imports, and the Dockerfile
	@.venv/bin/python -m ruff check
	@.venv/bin/python -m ruff format --check
	@.venv/bin/python -m mypy
	@.venv/bin/lint-imports
	@.venv/bin/hadolint infra/Dockerfile

setup: venv ## Make or update .venv with everything for development; PYTHON=python3.13 chooses another Python
	$(call install,dev,dev,40 s)

# The smaller sets are constrained by the largest one, so that a package has one version in all three.
# infra/: what images have beyond requirements.txt (REST: without its packages), and what builds the wheel.
COMPILE_ONLY = "$(UV)" pip compile --universal --python-version 3.11 --generate-hashes --quiet \
	--custom-compile-command "make lock" $(LOCKFLAGS)
COMPILE = $(COMPILE_ONLY) pyproject.toml
REST = $$(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' requirements.txt)
lock: $(if $(filter .venv/bin/uv,$(UV)),setup) ## Write the requirements files anew from pyproject.toml; LOCKFLAGS=--upgrade takes newer versions
	@$(COMPILE) --extra demo --extra analytics --extra traces --extra dev --group build -o requirements-dev.txt
	@$(COMPILE) --extra demo --group build -c requirements-dev.txt --no-annotate -o requirements-demo.txt
	@$(COMPILE) -c requirements-dev.txt --no-annotate -o requirements.txt
	@$(COMPILE) -c requirements-dev.txt --no-annotate --extra traces $(REST) -o infra/requirements-traces.txt
	@$(COMPILE_ONLY) --group build -c requirements-dev.txt --no-annotate -o infra/requirements-build.txt
	@$(COMPILE_ONLY) infra/cuda.in --no-annotate -o infra/requirements-cuda.txt
	@! grep -nE '^(torch|librosa|numba)|://' requirements*.txt infra/requirements*.txt

clean: ## Delete .venv and every cache; transcripts stay
	@rm -rf .venv .venv-bench-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Leaves a .venv alone that has pip and a new enough Python.
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
venv:
	@if ! .venv/bin/python -c 'import pip; $(NEW_ENOUGH)' 2>/dev/null; then \
		if ! "$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
			echo "Python 3.11 or newer is needed, but $(PYTHON) says: $$("$(PYTHON)" -V 2>&1 | tail -n 1). Name another one: make demo PYTHON=python3.13" >&2; exit 1; \
		fi; \
		if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
			echo "$(PYTHON) has no venv module. Install it (Debian, Ubuntu: apt install python3-venv) or name another Python: make demo PYTHON=python3.13" >&2; exit 1; \
		fi; \
		echo "Creating .venv with $$("$(PYTHON)" -V) (about 5 s)"; \
		"$(PYTHON)" -m venv --clear .venv; \
	fi

# $(call install,SET,SETS,TIME): requirements-SET.txt and the project itself go into .venv, unless the stamp of one of
# SETS holds what would be written now. Checksums, not times: switching branches and back installs nothing.
# Only wheels, since the build of anything else would fetch packages that no hash covers.
define install
@for set in $(2); do \
	if [ "$$(cksum requirements-$$set.txt pyproject.toml; pwd)" = "$$(cat .venv/installed-$$set 2>/dev/null)" ]; then exit 0; fi; \
done; \
echo "Installing requirements-$(1).txt into .venv (about $(3))"; \
rm -f .venv/installed-*; \
if $(PIP) install --no-deps --require-hashes --only-binary :all: -r requirements-$(1).txt >.venv/install.log 2>&1 \
	&& $(PIP) install --no-deps --no-build-isolation --no-index -e . >>.venv/install.log 2>&1; \
then (cksum requirements-$(1).txt pyproject.toml; pwd) >.venv/installed-$(1); \
else cat .venv/install.log >&2; exit 1; fi
endef
