# All of this works on a machine with Python 3.11, 3.12 or 3.13 and nothing else. PYTHON=/path/to/python names another.

# Packages on these paths would hide our own and the locked ones.
unexport PYTHONHOME PYTHONPATH

BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-pythons docs bench gpu lint layers format lock wheel clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv from the lock files, unless it is up to date
	@$(call environment,setup)

demo: setup ## set up and run the main job on the embedded collection
	$(BIN)/python -m workflows run configs/demo.yaml

# Files of tests side by side, each in one process, and those of the shared Ray in one; no more than four processes, as
# each holds the models that its tests make.
test: lint ## set up, check and test; ARGS="-k ..." goes to pytest, and "-n 0 --pdb" debugs in one process
	$(BIN)/python -m pytest -n logical --maxprocesses 4 $(ARGS)

test-all: lint ## the same, with the long tests
	$(BIN)/python -m pytest -m "" $(ARGS)

test-pythons: ## set up and try each supported Python that this machine has
	@python=$$(PYTHON="$(PYTHON)" sh cluster/find-python.sh) && exec "$$python" tests/each_python.py

docs: ## write the documentation, with its reference made from the code, to build/docs
	@$(call environment,setup documentation)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -f docs/mkdocs.yml
	@echo "open build/docs/index.html, or with its search: $(BIN)/python -m http.server --bind 127.0.0.1 -d build/docs"

bench: ## the benchmarks, tests/benchmarks/bench_*.py
	@$(call environment,setup development)
	OMP_NUM_THREADS=$$(nproc) $(BIN)/python -m pytest tests/benchmarks -m "" --timeout 0 -o python_files="bench_*.py" -s $(ARGS)

gpu: ## all that waits for a GPU, in 12 minutes of one; ARGS="--rehearse" tries the list on the CPU
	@$(call environment,setup gpu development)
	$(BIN)/python -m tests.gpu.session $(ARGS)

lint: ## style, types and import contracts
	@$(call environment,setup development documentation)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

layers: setup ## draw the folders and their imports
	$(BIN)/python -m tests.support.layers

format: ## sort imports and format the code
	@$(call environment,setup development)
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

lock: ## resolve pyproject.toml into new lock files; UPGRADE=1 takes the newest of everything
	@$(call environment,lock $(if $(UPGRADE),--upgrade))

wheel: setup ## build dist/sparring-*.whl
	rm -rf build/wheel build/lib
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/sparring-*.whl

clean: ## remove caches and build leftovers; never the store, the runs or .venv
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -path ./store -prune -o -path ./runs -prune -o -name __pycache__ -type d -exec rm -rf {} +

environment = python=$$(PYTHON="$(PYTHON)" sh cluster/find-python.sh) && exec "$$python" cluster/environment.py $(1)
