#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/ids.h"

namespace pageferry::transport {

/// The tightest limit on new shared memory, and what it is of.
struct ShmSpace {
  ByteCount available;
  std::string where;
};

/// Asks the system what a new file in the folder `dir_fd` may take: the least of the file system's
/// free space, the host's available memory and swap, the container's memory limit, and
/// RLIMIT_FSIZE. Going over some of them ends the process instead of failing the call, hence the
/// look before. kInvalidArgument, BAD_HANDLE: not a folder of a file system.
absl::StatusOr<ShmSpace> AvailableShmSpace(int dir_fd);

/// kResourceExhausted, OUT_OF_MEMORY with "needed_bytes", "available_bytes", "where".
absl::Status OutOfShm(ByteCount needed, const ShmSpace& space);

/// Reserves `size` bytes of `fd` from `offset` at once, so that no later write can fail for lack of
/// memory. kResourceExhausted, OUT_OF_MEMORY as above.
absl::Status ReserveShm(int fd, ByteCount size, const std::string& where, ByteCount offset = {});

}  // namespace pageferry::transport
