#!/bin/sh
# Compiler launcher of generated code: `with_gxx.sh [launcher...] clang++ flags...` runs g++ in the
# place of clang++, so that all lanes share one object. See PageferryProtos.cmake.
set -eu
launcher=""
while [ $# -gt 0 ]; do
  case "${1##*/}" in
    clang++* | g++*) shift; break ;;
    *) launcher="$launcher $1"; shift ;;
  esac
done
# shellcheck disable=SC2086  # the launcher is a list of words without spaces
exec $launcher g++ "$@"
