#!/usr/bin/env bash
# `./dev lint [--all]` and `./dev format` (--fix). Runs every check, then names those that failed.
# clang-tidy reads what the last 20 commits and the working tree touched; --all: everything.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. .ci/dev_lib.sh

mapfile -t cpp < <(files_of '*.h' '*.cc' '*.cu' '*.cuh')
mapfile -t shell < <(files_of dev '.ci/*' '*.sh' |
  xargs grep -lE '^#!.*\b(ba)?sh$|^# shellcheck shell=')

check_format() {
  local wrong
  wrong="$(clang-format-19 --dry-run "${cpp[@]}" 2>&1 | sed -n 's/^\([^ :]*\):.*/\1/p' | sort -u)"
  [ -n "$wrong" ] || return 0
  printf 'not formatted (./dev format does it): %s\n' "$wrong"
  return 1
}
check_python() {
  .venv/bin/ruff check --quiet . && .venv/bin/ruff format --quiet --check . &&
    (cd clients/python && ../../.venv/bin/mypy --no-error-summary)
}
check_shell() { shellcheck -x "${shell[@]}"; }
check_layers() { .ci/check_layers.sh && .ci/check_layers_test.sh; }

check_protos() {
  (cd protos && ../.venv/bin/buf lint) || return 1
  if [ -d protos/released ]; then
    (cd protos && ../.venv/bin/buf breaking --against released)
  else
    echo "buf breaking: nothing is released yet, so nothing can break"
  fi
}

# The .cc files that stand for the given ones: a header is read through its own source, or else
# through the first source that includes it.
sources_for() {
  local file source
  for file in "$@"; do
    case "$file" in
      *.cc) source="$file" ;;
      *.h)
        source="${file%.h}.cc"
        [ -f "$source" ] || source="$(grep -lF "\"$file\"" "${cpp[@]}" | grep '\.cc$' | head -n 1)"
        ;;
      *) source="" ;;
    esac
    [ ! -f "$source" ] || printf '%s\n' "$source"
  done | sort -u
}

touched() {
  local base
  base="$(git rev-list --max-count=21 HEAD | tail -n 1)"
  {
    # With fewer than 21 commits the first one counts as well.
    if [ "$(git rev-list --count HEAD)" -gt 20 ]; then
      git diff --name-only --diff-filter=d "$base" --
    else
      git ls-files
    fi
    git ls-files --others --exclude-standard
  } | grep -E '\.(h|cc)$' | sort -u
}

check_tidy() {
  local files sources
  configure tidy || return 1
  cmake --build --preset tidy -j "$jobs" >/dev/null || return 1
  if [ "$all" = 1 ]; then files=("${cpp[@]}"); else mapfile -t files < <(touched); fi
  # Only what the build knows: the rest has no flags to be read with.
  mapfile -t sources < <(comm -12 <(sources_for "${files[@]}") \
    <(sed -n 's/^  "file": "\(.*\)",\{0,1\}$/\1/p' build/tidy/compile_commands.json |
      sed "s|^$PWD/||" | sort -u))
  [ ${#sources[@]} -gt 0 ] || { echo "clang-tidy: nothing was touched"; return 0; }
  echo "clang-tidy: ${#sources[@]} files (3 to 40 s each)"
  printf '%s\0' "${sources[@]}" |
    xargs -0 -n 1 -P "$jobs" .ci/tidy_one.sh
}

all=0
case "${1:-}" in
  "") ;;
  --all) all=1 ;;
  --fix)
    clang-format-19 -i "${cpp[@]}"
    .venv/bin/ruff check --quiet --fix .
    .venv/bin/ruff format --quiet .
    exit
    ;;
  *) die "lint: unknown option $1" ;;
esac

failed=()
for check in format layers protos python shell tidy; do
  stage "lint: $check" "check_$check" || failed+=("$check")
done
if [ ${#failed[@]} -gt 0 ]; then
  say "lint FAILED: ${failed[*]}"
  exit 1
fi
say "lint passed"
