#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/common/ids.h"
#include "libs/transport/pool_file.h"
#include "libs/transport/shared_mapping.h"

namespace pageferry::transport {

/// Tells files of one host apart, whatever their names are.
struct MemoryFileId {
  uint64_t device = 0;
  uint64_t inode = 0;

  friend bool operator==(const MemoryFileId&, const MemoryFileId&) = default;
};

/// A file of shared memory that somebody else owns, opened.
struct MemoryFile {
  FileHandle handle;
  MemoryFileId id;
  ByteCount size;
  ByteCount allocated;  // memory that it takes now; the rest are holes
  ByteCount page;       // of memory: mappings begin at a multiple
  bool huge = false;    // on hugetlbfs
};

/// Opens "/name" of shm_open() in the folder `dir`. Links are not followed.
/// kInvalidArgument, BAD_HANDLE with "handle" and "error": no such file, no permission, or not a
/// plain file in memory (tmpfs, a memfd, hugetlbfs). Devices and pipes are looked at, never opened.
absl::StatusOr<MemoryFile> OpenShm(const std::string& dir, const std::string& shm_name,
                                   SharedMapping::Access access);

/// Opens a file by its absolute path, such as /proc/PID/fd/N of a memfd. Errors as above.
absl::StatusOr<MemoryFile> OpenMemoryFile(const std::string& path, SharedMapping::Access access);

/// "/proc/PID/fd/FD": how others of the same user reach a file that has no name.
std::string PathOfDescriptor(int64_t pid, int64_t fd);

/// kInvalidArgument, BAD_HANDLE with "handle" and "error".
absl::Status BadHandle(absl::string_view handle, absl::string_view error);

}  // namespace pageferry::transport
