#!/usr/bin/env bash
# Puts one bad line at a time into a small tree and sees check_layers.sh refuse it.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
tree="$(mktemp -d)"
trap 'rm -rf "$tree"' EXIT
failed=0
cases=0

# The tree as it should be; each case starts from it.
fresh() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/{libs/common,libs/transport,services/bootstrap,services/transfer-agent,tools/ctl,kernels} \
    "$tree"/{tests/unit,protos}
  printf '#include <vector>\n// asserts nothing: assert(x) and now() in a comment\n' \
    >"$tree/libs/common/lease_table.cc"
  printf 'const char* kText = "throw abort() sleep(1)";\nabsl::Time t = absl::Now();\n' \
    >"$tree/libs/common/clock.cc"
  printf '#include <grpcpp/grpcpp.h>\ngrpc::Status Run();\nstatic_assert(sizeof(int) == 4);\n' \
    >"$tree/services/bootstrap/edge.cc"
  printf '#include "tests/unit/x.h"\nvoid F() { ASSERT_TRUE(true); }\n' >"$tree/tests/unit/x_test.cc"
}

check() { "$here/check_layers.sh" "$tree" 2>&1; }

# refuses WHERE FILE TEXT: with TEXT added to FILE, the check must fail and say WHERE.
refuses() {
  local output
  cases=$((cases + 1))
  fresh
  printf '%b\n' "$3" >>"$tree/$2"
  if output="$(check)" || ! grep -qF "$1" <<<"$output"; then
    printf 'not refused: %s in %s; wanted "%s", got:\n%s\n' "$3" "$2" "$1" "$output"
    failed=1
  fi
}

fresh
check >/dev/null || { echo "the good tree is refused:"; check; exit 1; }

refuses 'services share protos' services/bootstrap/a.cc '#include "services/transfer-agent/room.h"'
refuses 'no libs/transport/' services/bootstrap/a.cc '#include "libs/transport/transport.h"'
refuses 'neither protos nor gRPC' libs/transport/a.cc '#include "pageferry/peer/v1/peer.pb.h"'
refuses 'neither protos nor gRPC' libs/transport/a.cc '#include <grpcpp/grpcpp.h>'
refuses 'does not know services/' libs/common/a.cc '#include "services/bootstrap/store.h"'
refuses 'does not know libs/transport/' libs/common/a.cc '#include "libs/transport/transport.h"'
refuses 'nothing includes tests/' libs/common/a.cc '#include "tests/fakes/fake_clock.h"'
refuses 'speaks to services through' tools/ctl/a.cc '#include "services/bootstrap/store.h"'
refuses 'speaks to services through' tools/ctl/a.cc '#include "libs/transport/transport.h"'
refuses 'nothing but tests includes' services/bootstrap/a.cc '#include "tools/ctl/table.h"'
refuses 'throws' tools/ctl/a.cc 'throw 1;'
refuses 'kernels/ sees' kernels/a.cu '#include "libs/common/ids.h"'
refuses 'UCX is for' services/transfer-agent/a.cc '#include <ucp/api/ucp.h>'
refuses 'lease_table.cc:3: pure file includes thread' libs/common/lease_table.cc '#include <thread>'
refuses 'pure file includes chrono' services/transfer-agent/send_room.h '#include <chrono>'
refuses 'pure file includes grpcpp' services/bootstrap/port_table.h '#include <grpcpp/grpcpp.h>'
refuses 'a.cc:2: asks the time' services/bootstrap/a.cc '\nauto t = std::chrono::steady_clock::now();'
refuses 'asks the time' libs/common/a.cc 'auto t = absl::Now();'
refuses 'asks the time' libs/common/a.cc 'auto t = time(nullptr);'
refuses 'sleeps' libs/transport/a.cc 'std::this_thread::sleep_for(x);'
refuses 'sleeps: unit tests' tests/unit/a_test.cc 'absl::SleepFor(x);'
refuses 'random seed' libs/common/a.cc 'std::random_device d;'
refuses 'asserts' services/bootstrap/a.cc 'assert(x);'
refuses 'asserts' services/bootstrap/a.cc 'CHECK_EQ(x, y);'
refuses 'ends the process' services/bootstrap/a.cc '  std::abort();'
refuses 'throws' services/bootstrap/a.cc '/* a\n comment */ throw 1;'
refuses 'volatile' libs/common/a.cc 'volatile int x;'
refuses 'grpc::Status outside' services/bootstrap/a.cc 'grpc::Status F();'
refuses '401 lines, at most 400' libs/common/a.cc "$(printf '%.0s\\n' {1..400})"
refuses '801 lines, at most 800' protos/a.proto "$(printf '%.0s\\n' {1..800})"

# Through a header, and too many edges.
fresh
cases=$((cases + 2))
printf '#include <mutex>\n' >"$tree/libs/common/locked.h"
printf '#include "libs/common/locked.h"\n' >"$tree/libs/common/topology.h"
grep -q 'pure file reaches mutex' <<<"$(check)" || { echo "not refused: a lock by way of a header"; failed=1; }
fresh
for i in {1..36}; do echo '#include "libs/common/wire.h"' >"$tree/libs/common/many$i.cc"; done
echo '#include <grpcpp/grpcpp.h>' >"$tree/libs/common/wire.h"
grep -q '37 sources include gRPC' <<<"$(check)" || { echo "not refused: 37 gRPC sources"; failed=1; }

[ "$failed" = 0 ] && echo "check_layers_test: $cases cases refused as they should be"
exit "$failed"
