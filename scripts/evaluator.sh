#!/usr/bin/env bash
# Make the environment of OSWorld's evaluator (desktop-env 1.0.2, about 1.3 GB) where it belongs: DART_GYM_EVALUATOR, or
# ~/.local/share/dart-gym/evaluator-1.0.2. Idempotent. Needs the package's own environment, see setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/dart-gym evaluator install "$@"
