# Everything a newcomer needs: Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help train test lint docs bench bench-accelerator fuzz kill label-demo clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python >= 3.11 is needed, {v[0]}.{v[1]} found; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

train: $(STAMP)  ## Install, train a ball from labels for a few minutes, print a result table.
	$(BIN)/python -m traces_jax.train --config experiments/ball_run.py --config.seeds=2 --config.steps=400000 \
		--run_dir runs/first

test: $(STAMP)  ## Install, run all tests.
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(STAMP)  ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  ## Build the documents as a site that needs no network: site/index.html.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)  ## Print the speed table, and what a study costs.
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.study

bench-accelerator: $(STAMP)  ## Print and save the table for this GPU or TPU, to be pasted into an issue (small on a CPU).
	$(BIN)/python -m benchmarks.accelerator

fuzz: $(STAMP)  ## Damage files and settings by the ten thousand, print what their readers made of them.
	PYTHONPATH=tests $(BIN)/python -m benchmarks.fuzz_files
	$(BIN)/python -m benchmarks.fuzz_config

kill: $(STAMP)  ## Kill commands at 50 moments and studies at 60, fill the disk at 10 (Linux, as root), compare the ends.
	$(BIN)/python -m benchmarks.kill
	$(BIN)/python -m benchmarks.disk_full
	$(BIN)/python -m benchmarks.kill_study
	$(BIN)/python -m benchmarks.kill_label
	$(BIN)/python -m benchmarks.kill_page

label-demo: $(STAMP)  ## Train a cheetah not to fall with your own labels: a small run, and the page with its clips.
	$(BIN)/python examples/label_demo.py

clean:  ## Remove the virtual environment and caches; runs/ stays.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
