#include "libs/transport/imported_pool.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/transport/memlock.h"

namespace pageferry::transport {
namespace {

constexpr int64_t kMinSize = 4096;
constexpr int64_t kMaxSize = int64_t{16} << 40;

struct Found {
  MemoryFile file;
  ImportIdentity identity;
};

absl::StatusOr<MemoryFile> OpenHandle(const ImportOptions& options, SharedMapping::Access access) {
  if (options.shm_name.empty() == options.memory_file.empty()) {
    return InvalidField("handle", "", "exactly one of shm_name and memory_file");
  }
  if (!options.shm_name.empty()) return OpenShm(options.dir, options.shm_name, access);
  for (const char* const own : {"/proc/self/", "/proc/thread-self/", "/dev/fd/"}) {
    if (absl::StartsWith(options.memory_file, own)) {
      return BadHandle(options.memory_file, "the agent's own; name the engine's process by number");
    }
  }
  return OpenMemoryFile(options.memory_file, access);
}

absl::StatusOr<Found> Find(const ImportOptions& options) {
  if (options.size.value() < kMinSize || options.size.value() > kMaxSize) {
    return InvalidField("size_bytes", absl::StrCat(options.size.value()), "4096 to 17592186044416");
  }
  const auto access =
      options.read_only ? SharedMapping::Access::kReadOnly : SharedMapping::Access::kReadWrite;
  PAGEFERRY_ASSIGN_OR_RETURN(MemoryFile file, OpenHandle(options, access));
  const std::string handle = absl::StrCat(options.shm_name, options.memory_file);
  if (options.data_offset.value() < 0 || options.data_offset.value() % file.page.value() != 0) {
    return InvalidField("data_offset_bytes", absl::StrCat(options.data_offset.value()),
                        absl::StrCat("a multiple of ", file.page.value()));
  }
  const ByteCount end = options.data_offset + options.size;
  if (end > file.size) {
    return BadHandle(handle, absl::StrCat("it has ", file.size.value(),
                                          " bytes, and the pool would end at ", end.value()));
  }
  if (options.huge && !file.huge) return BadHandle(handle, "it is not on hugetlbfs");
  // Living agents hold a lock on their pools; the lock that this takes goes with `looker`.
  const FileHandle looker(
      open(PathOfDescriptor(getpid(), file.handle.fd()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!looker.valid() || !TryLock(looker.fd(), FileLock::kLooker)) {
    return BadHandle(handle, "another process has it locked, as agents have their own pools");
  }
  ImportIdentity identity{.file = file.id,
                          .data_offset = options.data_offset,
                          .size = options.size,
                          .read_only = options.read_only};
  return Found{.file = std::move(file), .identity = identity};
}

// Holes would be filled in the middle of a write, and end it where memory is short.
absl::Status ReserveHoles(const Found& found, ImportOptions& options) {
  if (options.read_only) return absl::OkStatus();
  const ByteCount holes = std::min(found.file.size - found.file.allocated, options.size);
  if (!found.file.huge && holes.value() > 0) {
    const int fd = found.file.handle.fd();
    auto space = options.available_space ? options.available_space(fd) : AvailableShmSpace(fd);
    PAGEFERRY_RETURN_IF_ERROR(space.status());
    if (holes > space->available) return OutOfShm(holes, *space);
  }
  return ReserveShm(found.file.handle.fd(), options.size, "the engine's memory",
                    options.data_offset);
}

}  // namespace

absl::StatusOr<ImportIdentity> ImportedPool::Identify(const ImportOptions& options) {
  PAGEFERRY_ASSIGN_OR_RETURN(const Found found, Find(options));
  return found.identity;
}

absl::StatusOr<std::unique_ptr<ImportedPool>> ImportedPool::Open(ImportOptions options) {
  PAGEFERRY_RETURN_IF_ERROR(PoolFileName(options.agent_id, options.name).status());
  PAGEFERRY_ASSIGN_OR_RETURN(Found found, Find(options));
  if (options.lock) PAGEFERRY_RETURN_IF_ERROR(CheckMemlock(options.size, ReadMemlock()));
  const auto access =
      options.read_only ? SharedMapping::Access::kReadOnly : SharedMapping::Access::kReadWrite;
  PAGEFERRY_ASSIGN_OR_RETURN(
      SharedMapping mapping,
      SharedMapping::Map(found.file.handle.fd(), options.size, access, options.data_offset));
  PAGEFERRY_RETURN_IF_ERROR(ReserveHoles(found, options));
  if (options.lock) PAGEFERRY_RETURN_IF_ERROR(LockMemory(mapping.data(), options.size));
  std::unique_ptr<ImportedPool> pool(
      new ImportedPool(found.identity, std::move(found.file.handle), std::move(mapping)));
  if (found.file.huge) pool->huge_.bytes = options.size;
  PAGEFERRY_ASSIGN_OR_RETURN(pool->control_, ShmPool::CreateOrAdopt({.agent_id = options.agent_id,
                                                                     .name = options.name,
                                                                     .control_only = true,
                                                                     .dir = options.dir,
                                                                     .group = options.group}));
  pool->local_ = pool->control_->local();
  pool->local_.data = LocalData{.shm_name = options.shm_name,
                                .pid = getpid(),
                                .fd = pool->handle_.fd(),
                                .device = found.identity.file.device,
                                .inode = found.identity.file.inode,
                                .offset = options.data_offset};
  return pool;
}

}  // namespace pageferry::transport
