#!/usr/bin/env bash
# Generates the protocol code into src/pageferry/<name>/v1 (not committed).
# Usage: generate.sh [PYTHON]   PYTHON needs the package grpcio-tools.
set -euo pipefail
exec "${1:-python3}" "$(dirname "$(readlink -f "$0")")/tools/generate.py"
