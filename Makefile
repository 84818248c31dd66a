# Every target does its own set-up: a virtual environment from a lock file, made once and again when the lock changes.
# The interpreter that the environments are made from, not the one that runs things.
PYTHON ?= python3.11
# Where PyTorch comes from, e.g. TORCH="--index-url https://download.pytorch.org/whl/cpu" for a small CPU build.
TORCH ?=
# Arguments of pytest, e.g. make test ARGS="-k extract".
ARGS ?=
# full = the paper's own models; nano = a rehearsal on CPUs; another name is a file of configs/scale.
SCALE ?= full

CURRENT := .venv/.ready
PAPER := .venv-paper/.ready
RUN := .venv/bin/python
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo list test test-slow test-real test-paper-stack test-page report audit-published lint format data lock wheel clean

help: ## list the targets
	@grep -hE '^[a-zA-Z%-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(CURRENT) ## only the set-up of the current stack

demo: $(CURRENT) ## base, LoRA and DyPAM on Gemma-3-270M over minimath, and their table (20 minutes on 2 cores)
	$(RUN) scripts/run.py -m experiment=demo
	$(RUN) scripts/table.py experiment=demo

reproduce-%: $(CURRENT) ## the runs of a table or figure, then its drawing: reproduce-table1 [ARGS=…]
	$(RUN) scripts/reproduce.py $* scale=$(SCALE) $(ARGS)

list: $(CURRENT) ## every experiment: its runs, done, running, failed, left
	$(RUN) scripts/list.py scale=$(SCALE) $(ARGS)

test: $(CURRENT) ## the unit tests (minutes)
	$(PYTEST) -n 2 --dist loadfile -m "not slow and not real" $(ARGS)

test-slow: $(CURRENT) ## the long tests: kills and resumes, whole runs on tiny models
	$(PYTEST) -m "slow and not real" $(ARGS)

test-real: $(CURRENT) ## tests on the real Gemma-3-270M and on LLM-Adapters' files
	$(RUN) scripts/convert.py backbone=gemma3-270m
	$(PYTEST) -m real $(ARGS)

test-paper-stack: $(PAPER) ## the unit tests on the paper's stack (PyTorch for CPU where there is no GPU)
	OMP_NUM_THREADS=1 .venv-paper/bin/python -m pytest -n 2 --dist loadfile -m "not slow and not real" $(ARGS)

test-page: $(CURRENT) ## the results page in headless Chromium (Debian: chromium and chromium-driver)
	$(PYTEST) tests/report/test_page.py $(ARGS)

report: $(CURRENT) ## the results page of all runs, results/report.html
	$(RUN) scripts/report.py $(ARGS)

audit-published: $(CURRENT) ## recompute the published numbers; print what does not fit, and why
	$(RUN) scripts/audit_published.py

lint: $(CURRENT) ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(CURRENT) ## let ruff mend what it can
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

data: $(CURRENT) ## fetch and verify every file of data/manifest.yaml
	$(RUN) scripts/fetch.py

wheel: $(CURRENT) ## the package `dypam` alone, into dist/
	$(RUN) -m build --wheel --no-isolation

lock: ## resolve requirements*.in again into requirements*.lock
	for s in "" -paper; do \
	  rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock && \
	  .venv-lock/bin/pip install -q $(TORCH) $$(grep -h '^torch==' requirements$$s.in) && \
	  .venv-lock/bin/pip install -q -r requirements$$s.in && \
	  { echo "# Written by \`make lock\` from requirements$$s.in; install PyTorch first (see Makefile)."; \
	    .venv-lock/bin/pip freeze --all | sed 's/+c[pu0-9]*$$//' | grep -vE '^(pip|nvidia-.*|cuda-.*|triton)=='; \
	  } > .venv-lock/lock && mv .venv-lock/lock requirements$$s.lock || exit 1; \
	done; rm -rf .venv-lock

clean: ## remove the virtual environments (runs and downloads stay)
	rm -rf .venv .venv-paper .venv-lock

.venv/.ready: requirements.lock
.venv-paper/.ready: requirements-paper.lock
%/.ready:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11, or give another: make PYTHON=/path/to/python3.11 …"; exit 2; }
	@command -v $${CXX:-c++} >/dev/null || { echo "No C++ compiler was found, and DeepSpeed needs one: install g++ (Debian, Ubuntu: apt-get install g++) or set CXX."; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is not Python 3.11, which the locks are for."; exit 2; }
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install -q --disable-pip-version-check $(TORCH) $$(grep '^torch==' $<)
	$*/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $< && $*/bin/python -m pip check
	rm -rf $*/torch_extensions
	DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$(CURDIR)/$*/torch_extensions PATH="$(CURDIR)/$*/bin:$$PATH" \
	  $*/bin/python -c 'from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as Op; Op().load(verbose=False)'
	touch $@
