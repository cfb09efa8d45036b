#include "libs/transport/memlock.h"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry::transport {
namespace {

absl::Status OverLimit(ByteCount needed, const MemlockState& state, absl::string_view detail) {
  const ByteCount limit = state.limit.value_or(ByteCount(std::numeric_limits<int64_t>::max()));
  const ByteCount available = std::max(limit - state.locked, ByteCount());
  return MakeError(
      absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory,
      absl::StrCat("locking needs ", needed.value(), " bytes; RLIMIT_MEMLOCK is ",
                   state.limit.has_value() ? absl::StrCat(limit.value()) : "unlimited",
                   ", of which ", state.locked.value(), " are locked already", detail,
                   ". Raise it (ulimit -l, LimitMEMLOCK=) or give the agent CAP_IPC_LOCK"),
      {{"needed_bytes", absl::StrCat(needed.value())},
       {"available_bytes", absl::StrCat(available.value())},
       {"where", "RLIMIT_MEMLOCK"},
       {"limit_bytes", absl::StrCat(limit.value())},
       {"locked_bytes", absl::StrCat(state.locked.value())}});
}

}  // namespace

MemlockState ReadMemlock() {
  MemlockState state;
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    state.limit = ByteCount(static_cast<int64_t>(
        std::min<uint64_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max())));
  }
  std::ifstream status("/proc/thread-self/status");
  std::string word;
  while (status >> word) {
    if (word == "VmLck:") {
      int64_t kilobytes = 0;
      status >> kilobytes;
      state.locked = ByteCount(kilobytes) * 1024;
    } else if (word == "CapEff:") {
      uint64_t capabilities = 0;
      status >> word;
      state.exempt =
          absl::SimpleHexAtoi(word, &capabilities) && (capabilities >> CAP_IPC_LOCK & 1) != 0;
    }
  }
  return state;
}

absl::Status CheckMemlock(ByteCount needed, const MemlockState& state) {
  if (state.exempt || !state.limit.has_value() || needed <= *state.limit - state.locked) {
    return absl::OkStatus();
  }
  return OverLimit(needed, state, "");
}

absl::Status LockMemory(const std::byte* data, ByteCount size) {
  const MemlockState state = ReadMemlock();
  PAGEFERRY_RETURN_IF_ERROR(CheckMemlock(size, state));
  if (mlock(data, static_cast<size_t>(size.value())) == 0) return absl::OkStatus();
  return OverLimit(size, state, absl::StrCat(" (", std::strerror(errno), ")"));
}

}  // namespace pageferry::transport
