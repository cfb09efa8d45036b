#include "libs/transport/shm_space.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::transport {
namespace {

void Tighten(ShmSpace& space, ByteCount available, const char* where) {
  if (available < space.available) space = {std::max(available, ByteCount()), where};
}

// The number after `key` in a file of lines "key number ..."; an empty key is the first word.
std::optional<int64_t> ReadNumber(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (!key.empty()) {
      if (word != key) continue;
      file >> word;
    }
    int64_t number = 0;
    if (absl::SimpleAtoi(word, &number)) return number;
    return std::nullopt;
  }
  return std::nullopt;
}

void TightenByHost(ShmSpace& space) {
  constexpr const char* kMemory = "/proc/meminfo";
  const auto available = ReadNumber(kMemory, "MemAvailable:");
  if (!available.has_value()) return;
  const int64_t swap = ReadNumber(kMemory, "SwapFree:").value_or(0);
  Tighten(space, ByteCount(SaturatingAdd(*available, swap)) * 1024, "host memory");
}

void TightenByContainer(ShmSpace& space) {
  const auto limit = ReadNumber("/sys/fs/cgroup/memory.max", "");
  const auto used = ReadNumber("/sys/fs/cgroup/memory.current", "");
  if (!limit.has_value() || !used.has_value()) return;
  // Cached files are given up before the limit bites.
  const int64_t cached = ReadNumber("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0);
  Tighten(space, ByteCount(*limit) - ByteCount(*used) + ByteCount(cached),
          "the container's memory limit");
}

}  // namespace

absl::StatusOr<ShmSpace> AvailableShmSpace(int dir_fd) {
  struct statvfs system = {};
  if (fstatvfs(dir_fd, &system) != 0) {
    const std::string error = std::strerror(errno);
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                     absl::StrCat("shared memory folder: ", error), {{"error", error}});
  }
  ShmSpace space{ByteCount(std::numeric_limits<int64_t>::max()), "file system"};
  // A tmpfs without a limit says that it has no blocks at all.
  if (system.f_blocks != 0) {
    space.available =
        ByteCount(static_cast<int64_t>(system.f_bavail)) * static_cast<int64_t>(system.f_frsize);
    space.where = "shared memory file system";
  }
  TightenByHost(space);
  TightenByContainer(space);
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    Tighten(space,
            ByteCount(static_cast<int64_t>(
                std::min<uint64_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()))),
            "RLIMIT_FSIZE");
  }
  return space;
}

absl::Status OutOfShm(ByteCount needed, const ShmSpace& space) {
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory,
                   absl::StrCat("the pool needs ", needed.value(), " bytes, ", space.where, " has ",
                                space.available.value()),
                   {{"needed_bytes", absl::StrCat(needed.value())},
                    {"available_bytes", absl::StrCat(space.available.value())},
                    {"where", space.where}});
}

absl::Status ReserveShm(int fd, ByteCount size, const std::string& where, ByteCount offset) {
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(fd, offset.value(), size.value());
  if (error == 0) return absl::OkStatus();
  struct statvfs system = {};
  ShmSpace space{ByteCount(), absl::StrCat(where, " (", std::strerror(error), ")")};
  if (fstatvfs(fd, &system) == 0) {
    space.available =
        ByteCount(static_cast<int64_t>(system.f_bavail)) * static_cast<int64_t>(system.f_frsize);
  }
  return OutOfShm(size, space);
}

}  // namespace pageferry::transport
