# Everything a person needs to run minibert, test it and measure it. `make help` lists it.

VENV := .venv
RUN := $(VENV)/bin
# pip is silent while it unpacks: every 15 seconds the size of the environment is printed.
TELL := (while sleep 15; do echo "installing: $$(du -sm .venv | cut -f1) MB in .venv"; done) & trap "kill $$!" EXIT;
INSTALL := $(TELL) $(RUN)/python -m pip install --disable-pip-version-check
RUNTIME := $(VENV)/.runtime
LINKS := minibert/kernels minibert/viz
DEVELOPMENT := $(VENV)/.development

# Which Python makes the environment; none named: the first of 3.11 to 3.14 that can.
PYTHON ?=
# What `make gpu` runs: on a GPU machine usually the image's own Python with its own torch.
GPU_PYTHON ?= python3
# For `make gpu`: --minutes 9, --output FOLDER, --only REGEX; `make gpu GPU_OPTIONS=--help` says all.
GPU_OPTIONS ?=
# For `make rehearsal`: --only REGEX, --no-compile.
REHEARSAL_OPTIONS ?=
# How long `make siege` goes on.
MINUTES ?= 30

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
.PHONY: help demo quick test firefox check docs locks newest siege bench gpu rehearsal static clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(RUNTIME) ## predict, explain, view and a Python example; needs no network once installed
	$(RUN)/minibert predict "$(CLOZE)"
	$(RUN)/minibert explain "$(TEXT)" --layer 0 --head 2 --query horse
	$(RUN)/python -c "$$EXAMPLE"
	@mkdir -p $(dir $(PAGE))
	$(RUN)/minibert view "$(TEXT)" "$(PAIR)" -o $(PAGE)
	@echo "The page: file://$(abspath $(PAGE))"

quick: $(DEVELOPMENT) ## the tests that a change touches, the nearest first, for at most a minute
	$(RUN)/python scripts/quick.py

test: $(DEVELOPMENT) ## check, and every test that needs no network
	PYTHON=$(RUN)/python scripts/run_tests.sh

firefox: $(DEVELOPMENT) ## every test of the pages and of notebook cells in an installed Firefox
	MINIBERT_BROWSER=firefox $(RUN)/pytest tests/browser

check: $(DEVELOPMENT) ## formatting, lint and types; those of the pages where node and npm are
	scripts/check_pages.sh
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy

docs: $(DEVELOPMENT) ## the site of docs/ in build/site; a wrong link or anchor is an error
	$(RUN)/mkdocs build --strict --quiet
	@echo "The site: file://$(abspath build/site/index.html)"

locks: $(DEVELOPMENT) ## do the pins resolve for every supported Python and platform? needs the package index
	$(RUN)/python scripts/check_locks.py

newest: $(VENV)/bin/python ## some tests with the newest releases, kernels by three Tritons; needs the package index
	PYTHON=$(abspath $(RUN)/python) scripts/newest.sh

siege: $(DEVELOPMENT) ## hostile files with fresh seeds: make siege MINUTES=30
	PYTHONPATH=.:tests $(RUN)/python -m tests.test_hostile_files --minutes $(MINUTES)

bench: $(DEVELOPMENT) ## speed of whole models beside the peers that are installed
	$(RUN)/python -m benchmarks.models

gpu: ## are the kernels right and how fast, 9 minutes a run, resumes; uses GPU_PYTHON, installs nothing
	$(GPU_PYTHON) -m benchmarks.gpu $(GPU_OPTIONS)

rehearsal: $(DEVELOPMENT) ## what `make gpu` launches in nine minutes, compiled and looked at without a GPU
	env -u TRITON_INTERPRET $(RUN)/python -m benchmarks.gpu.rehearsal --minutes 9 $(REHEARSAL_OPTIONS)

static: $(DEVELOPMENT) ## the same kernels compiled for Ampere, Hopper and Blackwell: registers, spills, shared memory
	for capability in 8.0 9.0 10.0; do env -u TRITON_INTERPRET $(RUN)/python -m benchmarks.gpu.rehearsal \
		--minutes 9 --capability $$capability $(REHEARSAL_OPTIONS) || exit 1; done

clean: ## remove what was built, keep .venv
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './$(VENV)' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	python=$$(scripts/find_python.sh $(PYTHON)) && $$python -m venv $(VENV)

# An archive of the sources has no links.
$(LINKS):
	ln -s ../$(@F) $@

# Every version is pinned, so pip has nothing to search; which build of torch it takes is left to
# pip's own configuration. setuptools goes first: the build runs in this environment, with this pin.
$(RUNTIME): pyproject.toml setup.py requirements/runtime.txt | $(VENV)/bin/python $(LINKS)
	@$(INSTALL) -c requirements/runtime.txt setuptools
	@$(INSTALL) -c requirements/runtime.txt --no-build-isolation -e .
	@touch $@

$(DEVELOPMENT): $(RUNTIME) requirements/development.txt
	@$(INSTALL) -c requirements/development.txt --no-build-isolation -e '.[dev,docs]'
	@touch $@
