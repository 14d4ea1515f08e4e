# make demo   compare seven methods on 20 clients, two seeds each; curves, bytes and a report in runs/demo
# make test   lint, types, and every test that is not slow: six to twelve minutes on two cores
# make test-fast   ruff, and each of these that takes less than a second, with its first parameters: one minute to two and a half
# make slow   the slow tests
# make help   these lines
# make slow-and-deployments   both at once, as continuous integration does: the second wait while the first compute
# make deployments   the tests that start Flower's own processes, torchrun, a compiler, a browser and benchmarks
# make soak   the long tests
# make golden the recorded runs, as on other processors
# make docs   the site of docs/, into site/; a warning or a broken link is an error
# make sanitize   the tests of the kernels in C, by eight threads too, compiled to stop at the first wrong access (gcc)
# make pipeline   a small GPT in four processes for a minute: loss, bytes, and what a batch took beside the law
# make federation   a Flower deployment on this machine: FedLUAR and LBGM on three SuperNodes, and what crossed the wire
# make wheel  dist/*.whl for this machine's kind, with the kernels compiled; THINWIRE_PURE=1 leaves them out
#
# All of them build .venv when it is missing or when pyproject.toml, constraints.txt or the
# kernels in C changed.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# THINWIRE_DATA names the folder of data sets, THINWIRE_SLOWLINK a program that makes slow links. Without them the tests
# that need them are skipped, by name.

# Compiled modules are kept, whatever the shell says: tests start many processes, and each would compile all of them.
export PYTHONDONTWRITEBYTECODE :=

DEMO_DATA ?= digits
DEMO_MODEL ?= mlp
DEMO_CLIENTS ?= 20
DEMO_SAMPLE ?= 10
DEMO_SPLIT ?= Dirichlet(0.3)
DEMO_ROUNDS ?= 40
DEMO_LR ?= 0.1
DEMO_SEEDS ?= 0,1
DEMO_HOLDOUT ?= 0.2
DEMO_RECORD ?= all
DEMO_OUT ?= runs/demo

# Processes that run tests at once: one more than there are cores, since some tests wait; and at most. Each holds 500 MB.
CORES := $(shell getconf _NPROCESSORS_ONLN)
JOBS ?= $(shell expr $(CORES) + 1)
MOST_JOBS ?= 4
TOGETHER := -n $(JOBS) --maxprocesses $(MOST_JOBS)

.PHONY: demo help test test-fast slow slow-and-deployments deployments lint soak golden docs sanitize pipeline federation wheel clean
.DELETE_ON_ERROR:

demo: .venv/.installed-cli,plots,data
	$(BIN)/thinwire run \
	  "FedAvg()" \
	  "FedAvg(opt=Adam(0.03))" \
	  "FedAvg(up=LBGM(threshold=0.4))" \
	  "LUAR(FedAvg(), recycle=1)" \
	  "SCAFFOLD()" \
	  "FedAvg(up=ErrorFeedback(TopK(0.05)))" \
	  "FedAvg(up=ErrorFeedback(ScaledSign()))" \
	  --data $(DEMO_DATA) --model $(DEMO_MODEL) \
	  --clients $(DEMO_CLIENTS) --sample $(DEMO_SAMPLE) --split "$(DEMO_SPLIT)" \
	  --rounds $(DEMO_ROUNDS) --lr $(DEMO_LR) --seeds $(DEMO_SEEDS) \
	  --holdout $(DEMO_HOLDOUT) --record $(DEMO_RECORD) \
	  --out $(DEMO_OUT) --overwrite
	@echo "the report, to open in a browser:"
	@$(BIN)/thinwire report $(DEMO_OUT)

QUICK := not slow and not soak and not deployment

# A file's tests stay in one process, which starts what they share once.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest $(TOGETHER) --dist loadfile --no-loadscope-reorder -m "$(QUICK)" $(ARGS)

# For the loop of a day. A process takes longer to import every test than what it waits for in them: one for each core.
test-fast: .venv/.installed-dev
	$(BIN)/ruff check --quiet
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(CORES) --maxprocesses $(MOST_JOBS) --dist loadfile --first -m "$(QUICK)" $(ARGS)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

slow: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest $(TOGETHER) --dist loadfile --no-loadscope-reorder -m "slow and not soak and not deployment" $(ARGS)

# Several at once; those of a federation take turns.
deployments: .venv/.installed-dev
	$(BIN)/pytest $(TOGETHER) --dist loadfile --no-loadscope-reorder -m "deployment and not soak" $(ARGS)

slow-and-deployments: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest $(TOGETHER) --dist loadfile --no-loadscope-reorder -m "(slow or deployment) and not soak" $(ARGS)

lint: .venv/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/zizmor --offline --quiet --no-progress .github
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms \
	  $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff

# Whatever else is typed, this -m replaces the one of pyproject.toml.
soak: .venv/.installed-dev
	$(BIN)/pytest -m soak --timeout 3600 $(ARGS)

# MKL_CBWR: matrix products as on any x86 processor, whichever this is. Levels that this processor does not have, of
# which it would stop at an illegal instruction, are left out.
LEVELS := import torch; all = ["default", "avx2", "avx512"]; this = torch.backends.cpu.get_cpu_capability().lower(); \
  print(*all[:all.index(this) + 1] if this in all else ["default"])
THREADS ?= 1 2
golden: .venv/.installed-dev
	for isa in $$($(BIN)/python -c '$(LEVELS)'); do for threads in $(THREADS); do \
	  echo "golden: $$isa, threads: $$threads"; \
	  ATEN_CPU_CAPABILITY=$$isa THINWIRE_TEST_THREADS=$$threads $(BIN)/pytest -q $(TOGETHER) tests/test_golden.py || exit 1; \
	done; done
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE $(BIN)/pytest -q $(TOGETHER) tests/test_golden.py

# What it warns of, it says to everyone: that there will be a second version of mkdocs.
docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

# Python is not compiled so, and starts first: what checks memory is loaded before it. libstdc++ goes with it, for what
# torch throws. Nothing says of memory that Python still holds at the end whose it is: leaks are not looked for.
SANITIZED := THINWIRE_SANITIZE=1 ASAN_OPTIONS=detect_leaks=0 \
  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
  $(BIN)/pytest -p no:faulthandler --timeout 3600
sanitize: .venv/.installed-dev
	CC=gcc THINWIRE_SANITIZE=1 $(BIN)/python src/thinwire/kernels/native/build.py
	$(SANITIZED) $(filter-out %/test_allocator.py,$(wildcard tests/kernels/test_*.py)) $(addprefix tests/links/test_,$(addsuffix .py,\
	  block dropout entropy quantize sign sparse stc transform))
	$(SANITIZED) tests/links/test_every_link.py -k "receiver_sees or zeros or whatever_a_packet"

pipeline: .venv/.installed-all
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 4 examples/pipeline/gpt.py $(ARGS)

federation: .venv/.installed-all
	$(BIN)/python examples/flower/federation.py $(ARGS)

wheel: export THINWIRE_PURE ?= 0
wheel: | .venv/pyvenv.cfg
	$(PIP) wheel --no-deps --wheel-dir dist .

clean:
	rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f src/thinwire/kernels/native/*.so src/thinwire/kernels/native/*.sanitized
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# pyvenv.cfg, and not the folder, whose date changes with each file in it.
.venv/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("thinwire needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

KERNELS := hatch_build.py $(wildcard src/thinwire/kernels/native/*.[ch] src/thinwire/kernels/native/build.py)

# torch goes first, so that the largest download fails early and is not repeated.
.venv/.installed-%: pyproject.toml constraints.txt $(KERNELS) | .venv/pyvenv.cfg
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e ".[$*]"
	touch $@
