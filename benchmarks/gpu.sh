#!/usr/bin/env bash
# The engine on a GPU: equality with transformers, throughput, latency, memory, as Markdown tables.
#
#   benchmarks/gpu.sh --prepare [PYTHON]   put the wheels that a bare machine lacks into .wheels/PYTHON, with a network
#   benchmarks/gpu.sh                      run there, without a network: python3 with torch and transformers is enough
#   benchmarks/gpu.sh --small [PART ...]   a small model, on any machine; PART: equality, throughput, latency, memory
#
# PYTHON is the version of the machine that will run it, 3.12 by default. Exits with 1 where a result is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
needed=(annotated-types pydantic pydantic-core pydantic-settings python-dotenv typing-inspection)

if [ "${1:-}" = --prepare ]; then
  python="${2:-3.12}"
  rm -rf ".wheels/$python"
  for name in "${needed[@]}"; do grep "^$name==" requirements.lock; done |
    python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
      --platform "manylinux_2_17_$(uname -m)" --platform "manylinux2014_$(uname -m)" -d ".wheels/$python" -r /dev/stdin
  du -sh ".wheels/$python"
  exit
fi

python="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" ".wheels/$python"/*.whl
PYTHONPATH="$site:src:." python3 -m benchmarks.gpu "$@"
