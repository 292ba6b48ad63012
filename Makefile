# What a developer runs. Everything is installed into .venv by the first target that needs it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
KERNELS := .kernels/.installed
PEERS := .peers/.installed
INFERENCE := .inference/.installed
TRACKING := .tracking/.installed
ARGS ?=
# These need a GPU: BENCHMARKS=benchmarks/layer_kernels.py runs one.
ON_A_GPU := $(patsubst %,benchmarks/%.py,layer_kernels graph_attention training_step activation_checkpointing loss_bands)
# Parts of graph_attention.py and training_step.py.
PARTS := $(wildcard benchmarks/peer_*.py benchmarks/step_*.py)
BENCHMARKS ?= $(filter-out $(ON_A_GPU) $(PARTS),$(wildcard benchmarks/*.py))
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: help venv kernels peers inference tracking train test test-slow test-slurm lint format docs bench wheel clean

help:
	@echo "make venv | kernels | peers | inference | tracking | train | test | test-slow | test-slurm | lint | format | docs | bench | wheel | clean   (ARGS='...' is passed on)"

venv: $(STAMP)

# Installed again only when the requirements change.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e '.[test,dev,docs,tensorboard]'
	touch $@

kernels: $(if $(ETESIAN_TEST_KERNELS),,$(KERNELS))
peers: $(if $(ETESIAN_TEST_PEERS),,$(PEERS))
inference: $(if $(ETESIAN_TEST_INFERENCE),,$(INFERENCE))
tracking: $(if $(ETESIAN_TEST_TRACKING),,$(TRACKING))

# Libraries for tests that name them; the environment itself stays without. New when the pins change.
$(KERNELS) $(PEERS) $(INFERENCE) $(TRACKING): .%/.installed: tests/%.txt | $(STAMP)
	rm -rf $(@D)
	$(BIN)/python -m pip install --no-deps --target $(@D) -r $<
	touch $@

train: venv
	$(BIN)/anemoi-training train $(ARGS)

test: venv kernels peers
	$(PYTEST) -m "not slow and not gpu and not slurm" $(ARGS)

test-slow: venv kernels peers inference tracking
	$(PYTEST) -m "slow and not gpu and not slurm" $(ARGS)

# One at a time: they share a Slurm, which tests/slurm/slurm_up.sh installs (Debian, as root) and starts.
test-slurm: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slurm tests/slurm $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: venv
	$(BIN)/anemoi-training config reference > docs/reference/config.md
	$(BIN)/python docs/fill_figures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: venv
	for script in $(BENCHMARKS); do $(BIN)/python $$script $(ARGS) || exit 1; done

wheel: venv
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
