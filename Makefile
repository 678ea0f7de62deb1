# Two commands do everything: `make quickstart` and `make test`. Each sets the machine up first, where needed.
SHELL := /bin/bash
BIN := .venv/bin
CONFIG ?= configs/quickstart.yaml
SEEDS ?= 5
SWITCHES := $(addprefix --switch ,pool=off dynamic-number=off dynamic-length=off entropy=off step-limit=on credit=step \
  sampling=uniform mini-batches=2 retire=on rewards=shuffled)
# What `make multiturn` ends with, as a teacher.
BETTER := teacher.options={model: tiny-multiturn}
# configs/multiturn.yaml without what it does about groups that fail as a whole.
FLAT := --set demonstrations.shown_pages=0 --set trainer.shown_rows=0
VLLM ?= $(addprefix tests/dart_agent/engines/test_vllm_,command_line.py real.py) \
  tests/dart_train/rollout/teachers/test_teacher_vllm.py \
  'tests/dart_train/parity/test_parity_vllm.py::test_vllm_agrees_with_the_trainer_on_mixtures_of_experts[qwen3_vl_moe-float32]'
# What `make test-all` runs after `make test`: parts that keep two cores busy or measure time, and parts that wait more
# than they compute, of which two run at a time, the longest first. For another part add `test-NAME` below, and NAME here.
PARTS := thorough security scale
PAIRED := ray vllm docker pythons package openenv
# Markers: neither slow nor a part with a target of its own; of these, what takes less than five seconds; of these, units.
OTHERS := not slow and not ray and not security and not scale and not docker and not openenv and not axe and not hubs and not package and not vllm
ELSEWHERE := not thorough and $(OTHERS)
UNIT := not desktop and not train and not process and not mysql and not e2e and $(ELSEWHERE)
BESIDE := --dist worksteal -n $$(($$(nproc) + 1)) --maxprocesses
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes are started: each would compile everything anew

.PHONY: help setup apps quickstart multiturn demo ablations forks-and-teachers coupled coupled-paced controls overnight lint format test test-unit test-all test-parts test-slow test-images docs lock clean \
  setup-unit setup-test setup-docs style generated failures test-hubs $(patsubst %,test-%,$(PARTS) $(PAIRED))

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:  ## install what is missing: Debian packages and .venv
	@scripts/setup.sh

apps:  ## install OSWorld's applications too, and pyautogui for the desktop
	@scripts/setup.sh apps

setup-unit:
	@scripts/setup.sh unit

setup-test:
	@scripts/setup.sh test

setup-docs:
	@scripts/setup.sh docs

quickstart: setup  ## train a tiny vision-language model on real desktops, asynchronously, on the CPU
	@$(BIN)/dart-train run $(CONFIG)

controls: setup  ## the honest controls of the quick start: shuffled rewards, supervised training only
	@$(BIN)/dart-train controls $(CONFIG)

multiturn: setup  ## train a tiny model on tasks of four to eleven actions, with all of DART's curation on
	@$(BIN)/dart-train run configs/multiturn.yaml

demo: setup  ## watch the model that `make multiturn` trained play, beside the same model before reinforcement learning
	@$(BIN)/python scripts/demo.py

ablations: setup  ## what each idea is worth: every switch on drawn tasks, SEEDS=5 each; hours, goes on where it was
	@$(BIN)/dart-train ablate configs/drawn.yaml --seeds $(SEEDS) --budget 1000rollouts --name ablations $(SWITCHES)
	@$(BIN)/dart-train ablate configs/drawn.yaml --seeds $(SEEDS) --budget 1000rollouts --name ablations-tis \
	  --switch "tis=on,off staleness=1,3,8"
	@$(BIN)/dart-train ablate configs/drawn.yaml --seeds $(SEEDS) --budget 2000rollouts --name ablations-pool --switch pool=off \
	  --set 'rollout.tasks=[drawn/tick-list,drawn/mend-list,drawn/menus,drawn/counter,drawn/wizard-form]' \
	  --set 'data.curation.pool_sources=[oracle]' --set demonstrations.per_task=24 --set demonstrations.grid=4 \
	  --set 'evaluation.beside=[]' --set evaluation.monitor.every_rollouts=500

coupled: setup  ## three multi-turn forms with parts that wait for one another, beside parts that do not; 40 minutes
	@$(BIN)/dart-train ablate configs/multiturn_short.yaml --switch mode=batch-wise --seeds 3 --budget 5minutes --name coupled

coupled-paced: setup  ## the same on 40 desktops that wait 2 s after each action, as OSWorld's do; 45 minutes
	@$(BIN)/dart-train ablate configs/multiturn_short.yaml --switch mode=batch-wise --seeds 3 --budget 5minutes \
	  --name coupled-paced --set rollout.pacing=step-pause --set rollout.workers=40 --set rollout.groups_at_once=1 \
	  --set evaluation.monitor.workers=16 --set evaluation.monitor.episodes=20

forks-and-teachers: setup  ## flat groups, forks, teachers, shown pages at equal numbers of actions, SEEDS=5 each; eight hours
	@$(BIN)/dart-train ablate configs/drawn.yaml --seeds $(SEEDS) --budget 6000actions --name drawn-forks-and-teachers \
	  --switch "forks=off,on teacher=none,dagger"
	@$(BIN)/dart-train ablate configs/drawn_hard.yaml --seeds $(SEEDS) --budget 6000actions --name drawn-hard \
	  --switch shown=on --switch teacher=dagger-rehearsed --switch forks=pool --switch "forks=pool teacher=dagger-rehearsed" \
	  --switch pool=off --switch "shown=on pool=off"
	@$(BIN)/dart-train ablate configs/multiturn.yaml --seeds $(SEEDS) --budget 5000actions --name ten-tasks $(FLAT) \
	  --set trainer.max_steps=420 --set evaluation.episodes=12 --set evaluation.monitor.every_rollouts=200 \
	  --switch shown=on --switch forks=pool --switch "teacher=dagger-rehearsed $(BETTER)" \
	  --switch "teacher.kind=distillation $(BETTER)" --switch "forks=pool teacher=dagger-rehearsed $(BETTER)"

overnight: setup-test  ## an hour of the quick start in which every module is killed in turn (DART_OVERNIGHT_MINUTES=60)
	@$(BIN)/python -m pytest -s -k hour_of_kills tests/dart_train/test_overnight.py

style: setup-test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

lint: style  ## ruff and the type checker
	@$(BIN)/mypy

format: setup-test  ## format the code, and write what is generated from it
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@$(MAKE) --no-print-directory generated

generated:
	@PYTHONPATH=. $(BIN)/python scripts/configuration_reference.py
	@PYTHONPATH=. $(BIN)/python scripts/draw_rooms.py
	@PYTHONPATH=. $(BIN)/python scripts/draw_concepts.py
	@PYTHONPATH=. $(BIN)/python scripts/schema_sql.py

failures: setup-test  ## run every command in every situation and write docs/reference/failures.md: half an hour
	@$(BIN)/python -m scripts.failures

test: style  ## the linters, and every test that takes less than five seconds, but for the parts below
	@$(BIN)/mypy & types=$$!; \
	$(BIN)/python scripts/run_tests.py $(BESIDE) 4 -m "$(ELSEWHERE)"; tests=$$?; \
	wait $$types || { echo "error: the type checker found what is printed above" >&2; exit 1; }; exit $$tests

test-unit: setup-unit  ## tests without desktops, models, servers and processes, properties on few examples: three minutes
	@$(BIN)/python -m pytest $(BESIDE) 8 --hypothesis-profile unit -m "$(UNIT)"

test-all: test test-parts  ## `make test`, and what needs a daemon or an environment of its own, but for what is slow

test-parts:  ## the second half of test-all
	@scripts/parts.sh $(PARTS) -- $(PAIRED)

test-thorough: setup-test  ## tests that take five seconds or more: whole runs, simulations, faults, others' clients, whole suites
	@REPORTS=build/thorough $(BIN)/python scripts/run_tests.py $(BESIDE) 4 -m "thorough and $(OTHERS)"

test-docker: setup-test  ## build the image and play episodes in containers, with a Docker daemon of its own (root)
	@tests/docker/run.sh

test-images: setup-test  ## build the images of the trainer, for the CPU, and of OpenEnv's server, and try them: a quarter of an hour (root)
	@IMAGES=train tests/docker/run.sh
	@IMAGES=openenv tests/docker/run.sh

test-vllm: setup-test  ## a real vLLM server on the CPU; VLLM=tests for all its tests
	@scripts/vllm.sh
	@REPORTS=build/vllm $(BIN)/python scripts/run_tests.py -m vllm --timeout 900 $(VLLM)

test-openenv: setup-test  ## OpenEnv's own client
	@scripts/openenv.sh

test-hubs: setup-test  ## our desktops by the packages of MCP, TRL, verifiers, Inspect, Harbor, NeMo Gym and others
	@scripts/hubs.sh

test-axe: setup-test  ## the page against axe-core's rules of accessibility, in Chromium (npm)
	@scripts/axe.sh

test-package: setup-test  ## wheel and sdist, checked as an index would, and what `pip install dart-gui` gives
	@scripts/package.sh

test-pythons: setup-test  ## unit tests on Python 3.11 with the oldest packages that are allowed, and on 3.13
	@scripts/pythons.sh "$(UNIT)"

test-scale: setup-test  ## ranks that share a model, and benchmarks whose aims tests hold: memory, parity, a step beside TRL's
	@REPORTS=build/scale $(BIN)/python scripts/run_tests.py -n 2 --dist loadfile -m "scale and not slow"

test-ray: setup-test  ## a Ray cluster of nodes without a common directory, killed and joined (root)
	@REPORTS=build/ray $(BIN)/python scripts/run_tests.py -s -m "ray and not slow"

test-security: setup-test  ## attacks of desktops, tasks, clients and pages; run it as root and as an ordinary user
	@scripts/security.sh

test-slow: setup-test  ## the tests that take many minutes: learning on three seeds, the controls
	@$(BIN)/python -m pytest -m "slow and not vllm and not docker" --timeout 7200

docs: setup-docs  ## the documentation as a site: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

lock: setup-test  ## compile requirements/*.txt anew; UPGRADE=1 looks for newer versions
	@scripts/lock.sh

clean:  ## remove what the targets made (runs, caches, environments)
	rm -rf runs .venv .venv-* build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
