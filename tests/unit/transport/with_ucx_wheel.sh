#!/usr/bin/env bash
# with_ucx_wheel.sh PROGRAM: compiles the sources that call UCX against the headers of the wheel in
# .venv, and runs PROGRAM with its library. The release that runs must be another than Debian's.
set -euo pipefail
root="${PAGEFERRY_ROOT:?}"
wheel="$(echo "$root"/.venv/lib/python3*/site-packages/libucx)"
[ -f "$wheel/include/ucp/api/ucp.h" ] || {
  echo "no wheel of UCX in .venv: ./dev setup"
  exit 1
}
for source in "$root"/libs/transport/ucx_*.cc; do
  c++ -std=c++20 -fsyntax-only -Wall -Werror -I"$root" -I"$wheel/include" "$source" &
done
for job in $(jobs -p); do wait "$job"; done
export LD_LIBRARY_PATH="$wheel/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PAGEFERRY_EXPECT_UCX=1.22
exec "$1"
