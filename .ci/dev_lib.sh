# shellcheck shell=bash
# Shared by ./dev and .ci/: messages, stages with their minutes, configuring. Sourced, from the root.

# shellcheck disable=SC2034  # for those who source this
jobs="${PAGEFERRY_JOBS:-$(nproc)}"

say() { printf '== %s\n' "$*"; }
die() {
  printf 'dev: %s\n' "$*" >&2
  exit 1
}

# stage NAME COMMAND...: runs it, says how long it took, and says which stage failed.
stage() {
  local name="$1" begin=$SECONDS rc=0 end="done"
  shift
  say "$name"
  "$@" || rc=$?
  [ $rc = 0 ] || end="FAILED ($rc)"
  local took=$((SECONDS - begin))
  printf '== %s: %s after %d.%d min\n' "$name" "$end" $((took / 60)) $((took % 60 / 6))
  return $rc
}

version() {
  sed -n 's/^  VERSION \([0-9.]*\)$/\1/p' CMakeLists.txt
  git describe --always --dirty 2>/dev/null || true
}

# Configures build/PRESET when it is new; later, CMake reconfigures by itself when a file asks for it.
configure() {
  if [ -f "build/$1/build.ninja" ] && [ ! CMakePresets.json -nt "build/$1/CMakeCache.txt" ]; then
    return 0
  fi
  mkdir -p build
  cmake --preset "$1" >"build/configure-$1.log" 2>&1 || {
    cat "build/configure-$1.log" >&2
    return 1
  }
}

# Files of ours (tracked, or new and not ignored) that match the given git patterns.
files_of() {
  git ls-files --cached --others --exclude-standard --deduplicate -- "$@" | while read -r file; do
    [ ! -f "$file" ] || printf '%s\n' "$file"
  done
}
