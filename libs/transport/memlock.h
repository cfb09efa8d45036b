#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "libs/common/ids.h"

namespace pageferry::transport {

/// What this process may lock in memory, by mlock() or by registering it with a device.
struct MemlockState {
  std::optional<ByteCount> limit;  // RLIMIT_MEMLOCK; none where that is unlimited
  ByteCount locked;                // by this process already
  bool exempt = false;             // CAP_IPC_LOCK: the limit does not count
};

/// What the system says of the calling thread.
MemlockState ReadMemlock();

/// OK where `needed` more bytes can be locked. kResourceExhausted, OUT_OF_MEMORY with
/// "needed_bytes", "available_bytes", "where" = "RLIMIT_MEMLOCK", "limit_bytes" and "locked_bytes".
/// Pure. To be asked before memory is made: devices answer with a bare "out of memory".
absl::Status CheckMemlock(ByteCount needed, const MemlockState& state);

/// Locks mapped memory in RAM; it is unlocked when it is unmapped. Errors as above, also where the
/// system refuses in the end.
absl::Status LockMemory(const std::byte* data, ByteCount size);

}  // namespace pageferry::transport
