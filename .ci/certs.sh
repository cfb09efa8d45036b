#!/usr/bin/env bash
# Throw-away certificates for trying out TLS: `./dev certs DIR`.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: ./dev certs DIR [NAME...]

Makes an authority and three certificates in DIR, a new or empty folder, for 30 days:
  ca.pem                           --tls-ca of everybody
  bootstrap.pem, bootstrap.key     --tls-cert and --tls-key of pageferry-bootstrap
  agent.pem, agent.key             of every pageferry-agent
  client.pem, client.key           of engines and tools, which listen nowhere
The authority's own key is removed, so that nobody can add to them.
They are good for localhost, 127.0.0.1, ::1, this host's name, and each NAME (a host or an address).
For trying out only: in a cluster let your own authority issue one for each agent.
TEXT
}

die() {
  printf 'certs: %s\n' "$*" >&2
  exit 1
}

case "${1:-}" in
  "" | -h | --help) usage; [ $# -gt 0 ] && exit 0 || exit 2 ;;
esac
command -v openssl >/dev/null || die "needs openssl"
folder="$1"
shift
mkdir -p "$folder"
[ -z "$(ls -A "$folder")" ] || die "$folder is not empty: nothing is overwritten"
umask 077
cd "$folder"

# Which of the two a name is, as openssl wants it.
san() {
  case "$1" in
    *:*) printf ',IP:%s' "$1" ;;
    *[!0-9.]*) printf ',DNS:%s' "$1" ;;
    *) printf ',IP:%s' "$1" ;;
  esac
}

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -sha256 \
  -subj "/CN=Pageferry throw-away authority" -keyout ca.key -out ca.pem 2>/dev/null

names=""
for name in localhost 127.0.0.1 ::1 "$(uname -n)" "$@"; do names+="$(san "$name")"; done
for part in bootstrap agent client; do
  case $part in
    # One for all ranks of all engines, which only a trial may have.
    agent) uri="URI:pageferry://default/*/*/*" usage=serverAuth,clientAuth ;;
    bootstrap) uri="URI:pageferry://default/bootstrap" usage=serverAuth ;;
    client) uri="URI:pageferry://default/operator" usage=clientAuth ;;
  esac
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 \
    -subj "/CN=pageferry $part" -keyout $part.key -out $part.csr 2>/dev/null
  openssl x509 -req -in $part.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -sha256 \
    -out $part.pem -extfile <(printf 'subjectAltName=%s%s\nextendedKeyUsage=%s\n' \
      "$uri" "$names" "$usage") 2>/dev/null
  rm $part.csr
done
rm ca.key ca.srl
chmod 0644 ./*.pem
files=(*)
echo "made ${files[*]} in $PWD"
