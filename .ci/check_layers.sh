#!/usr/bin/env bash
# Checks what no compiler checks: who may include whom, which calls belong to one file, how long a
# file may be. Usage: check_layers.sh [ROOT]. Prints file:line: what is wrong and what to do; exits 1
# when it printed anything. CONTRIBUTING.md explains the rules.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "${1:-$here/..}"

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  list() { git ls-files --cached --others --exclude-standard --deduplicate; }
else
  list() { find . -type f -not -path './build/*' | sed 's|^\./||'; }
fi

# Hand-written files, and C++ among them.
mapfile -t files < <(list | LC_ALL=C sort | while read -r file; do
  [ ! -f "$file" ] || printf '%s\n' "$file"
done)
mapfile -t cpp < <(printf '%s\n' "${files[@]}" |
  grep -E '^(libs|services|tools|kernels|tests|bench)/.*\.(h|cc|cu|cuh)$' || true)

rc=0

# Length: 400 lines, protos 800 (they are mostly comments).
for file in "${files[@]}"; do
  case "$file" in
    *.proto) limit=800 ;;
    *.h | *.cc | *.cu | *.cuh | *.py | *.sh | *.cmake | *CMakeLists.txt | dev | .ci/run) limit=400 ;;
    *) continue ;;
  esac
  lines="$(wc -l <"$file")"
  if [ "$lines" -gt "$limit" ]; then
    echo "$file:$limit: $lines lines, at most $limit: split it by what it does"
    rc=1
  fi
done

[ ${#cpp[@]} -eq 0 ] || awk -f "$here/layers.awk" "${cpp[@]}" || rc=1
exit $rc
