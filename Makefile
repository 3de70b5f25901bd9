# Everything a person needs to run minibert, test it and measure it. `make help` lists it.

VENV := .venv
RUN := $(VENV)/bin
CONSTRAINED := $(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
RUNTIME := $(VENV)/.runtime
DEVELOPMENT := $(VENV)/.development

# The first Python that is neither too old nor too new and can make an environment.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	2>/dev/null && echo $$python && break; done)
# What `make gpu` runs: on a GPU machine usually the image's own Python with its own torch.
GPU_PYTHON ?= python3
# For `make gpu`: --minutes 9, --output FOLDER, --only REGEX; `make gpu GPU_OPTIONS=--help` says all.
GPU_OPTIONS ?=
# How long `make siege` goes on.
MINUTES ?= 60
# A folder with the texts that scripts/train_embedded.py names.
TEXTS ?= build/texts

TEXT := the horse quickly ran away
PAIR := the boat slowly turned
CLOZE := the horse [MASK] away .
PAGE := build/demo.html

define EXAMPLE
import minibert

model = minibert.load()
trace = model.trace("$(TEXT)", "$(PAIR)")
print(f"{model.name}: {trace.config.n_layers} layers of {trace.config.n_heads} heads")
for layer in range(trace.config.n_layers):
    largest = [f"{p:.2f}" for p in trace[layer].probs[0].amax((1, 2))]
    print(f"layer {layer}, the largest weight of each head:", *largest)
endef
export EXAMPLE

.DEFAULT_GOAL := help
.PHONY: help demo test check siege bench gpu gpu-train static clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(RUNTIME) ## predict, explain, view and a Python example; needs no network once installed
	$(RUN)/minibert predict "$(CLOZE)"
	$(RUN)/minibert explain "$(TEXT)" --layer 0 --head 2 --query horse
	$(RUN)/python -c "$$EXAMPLE"
	@mkdir -p $(dir $(PAGE))
	$(RUN)/minibert view "$(TEXT)" "$(PAIR)" -o $(PAGE)
	@echo "The page: file://$(abspath $(PAGE))"

test: check ## check, then every test that needs no network
	PYTHON=$(RUN)/python scripts/run_tests.sh

check: $(DEVELOPMENT) ## formatting, lint and types; those of the pages where node and npm are
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	scripts/check_pages.sh

siege: $(DEVELOPMENT) ## hostile files with fresh seeds: make siege MINUTES=60
	PYTHONPATH=.:tests $(RUN)/python -m tests.siege --minutes $(MINUTES)

bench: $(DEVELOPMENT) ## speed of whole models beside the peers that are installed
	$(RUN)/python -m benchmarks.models

gpu: ## are the kernels right and how fast, 9 minutes a run, resumes; uses GPU_PYTHON, installs nothing
	$(GPU_PYTHON) -m benchmarks.gpu $(GPU_OPTIONS)

static: $(DEVELOPMENT) ## the kernels compiled for Hopper, no GPU needed: spills, registers, instructions
	$(RUN)/python -m benchmarks.static_gate

gpu-train: ## train the embedded models on the accelerator, from the texts in TEXTS; uses GPU_PYTHON
	$(GPU_PYTHON) scripts/train_embedded.py $(TEXTS) --device cuda

clean: ## remove what was built, keep .venv
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './$(VENV)' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "minibert needs Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch goes first and by its pin alone: no other package may choose its version or build.
$(RUNTIME): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(CONSTRAINED) torch setuptools
	$(CONSTRAINED) --no-build-isolation -e .
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	$(CONSTRAINED) --no-build-isolation -e '.[dev]'
	@touch $@
