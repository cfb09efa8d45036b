#!/usr/bin/env bash
# clang-tidy on one file; silent when it finds nothing. A pass is remembered by the hash of
# everything that the compiler reads for the file, so that a second lint takes seconds.
set -uo pipefail
file="$1"
passed=.cache/tidy
command="$(grep -F "\"command\": " build/tidy/compile_commands.json | grep -F -- " -c $PWD/$file\"" |
  head -n 1 | sed 's/^ *"command": "//; s/",\{0,1\}$//; s/ -o [^ ]* / /; s/\\"/"/g')"
key=""
if [ -n "$command" ]; then
  key="$({ cat .clang-tidy; (cd build/tidy && eval "${command/ -c / -E -C -c }" 2>/dev/null); \
    cat "$file"; } | sha256sum | cut -d' ' -f1)"
  [ ! -e "$passed/$key" ] || exit 0
fi
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
begin=$SECONDS
if clang-tidy-19 -p build/tidy --quiet "$file" >"$log" 2>/dev/null; then
  if [ -n "$key" ]; then mkdir -p "$passed" && touch "$passed/$key"; fi
  echo "  ok $file ($((SECONDS - begin)) s)"
else
  echo "  FAILED $file"
  cat "$log"
  exit 1
fi
