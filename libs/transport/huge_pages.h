#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "libs/common/ids.h"

namespace pageferry::transport {

/// Whether a pool is to lie on huge pages (2 MiB) of the shared memory file system.
enum class HugePages { kNo, kPrefer, kRequire };

inline constexpr int64_t kHugePage = int64_t{2} << 20;

/// What became of it. Nothing was asked where both are empty.
struct HugePagesGot {
  ByteCount bytes;  // of data that lie on huge pages
  std::string why;  // not all of them do; for people
};

/// Moves the mapped shared memory from `data`, which lies at a boundary of 2 MiB in memory and in
/// its file and is reserved, to huge pages. Its content stays. What the host's settings or its
/// fragmented memory do not allow stays on small pages, and `why` tells so.
///
/// Blocks while memory is copied. Needs Linux 6.1, or `shmem_enabled` set to "always".
HugePagesGot UseHugePages(std::byte* data, ByteCount size);

/// The number of kB in the line `key` of that mapping in the text of /proc/PID/smaps, in bytes; 0
/// where there is none. Pure.
ByteCount FindInSmaps(absl::string_view smaps, const void* address, absl::string_view key);

}  // namespace pageferry::transport
