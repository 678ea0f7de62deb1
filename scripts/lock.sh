#!/usr/bin/env bash
# Compile requirements/*.txt from pyproject.toml and requirements/*.in: exact versions with hashes, no addresses of an
# index; and the uv.lock of integrations/openenv. torch comes in several builds. So it is in torch.txt alone, as the package
# index has it, with CUDA's libraries; the other locks have what every build of it needs (see requirements/uv.toml).
# Versions stay as they are where they still fit: `make lock UPGRADE=1` looks for newer ones.
set -euo pipefail
cd "$(dirname "$0")/.."

UV=$(command -v uv || echo .venv/bin/uv)
export UV_CUSTOM_COMPILE_COMMAND="make lock"

lock() {  # lock NAME INPUT... : requirements/NAME.txt
  local name=$1; shift
  printf '%s\n' "$name" >&2
  "$UV" pip compile -q ${CONFIG---config-file requirements/uv.toml --no-emit-package torch} --python-version "${PYTHON:-3.11}" --generate-hashes --no-annotate \
    --no-emit-index-url ${UPGRADE:+--upgrade} -o "requirements/$name.txt" "$@"
}

with_tests="-c requirements/test.txt"     # where they share a package, they share its version
# shellcheck disable=SC2086
{
  lock test pyproject.toml requirements/build.in --extra test --universal
  CONFIG=--no-config lock torch requirements/torch.in --universal $with_tests
  lock train pyproject.toml requirements/build.in --extra train --universal $with_tests
  lock base pyproject.toml --universal $with_tests
  lock docs pyproject.toml --extra docs --universal $with_tests
  lock pytest requirements/pytest.in --universal $with_tests
  lock openenv pyproject.toml requirements/{build,pytest,openenv}.in
  lock hubs pyproject.toml requirements/{build,pytest,hubs}.in --extra mcp --extra train $with_tests
  lock hubs-verifiers pyproject.toml requirements/{build,pytest,hubs-verifiers}.in
  lock hubs-inspect pyproject.toml requirements/{build,pytest,hubs-inspect}.in
  PYTHON=3.12 lock hubs-nemo pyproject.toml requirements/{build,pytest,hubs-nemo}.in
  PYTHON=3.12 lock hubs-harbor requirements/{build,hubs-harbor}.in
  lock floors pyproject.toml requirements/build.in --extra train --resolution lowest-direct
  lock vllm requirements/vllm.in --override requirements/torch.in --no-emit-package torchaudio --no-emit-package torchcodec
  lock package requirements/package.in
  lock desktop requirements/desktop.in --no-deps
  lock evaluator requirements/evaluator.in --no-deps
}
# What OpenEnv's own validation asks for, and `uv run --project integrations/openenv server` of a checkout installs.
"$UV" lock -q --no-config --default-index https://pypi.org/simple ${UPGRADE:+--upgrade} --project integrations/openenv
mv requirements/evaluator.txt dart_gym/tasks/evaluation/requirements.txt   # it is installed from the package
