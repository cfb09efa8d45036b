#include "libs/transport/memory_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry::transport {
namespace {

// Of stat(2), whatever the file system is.
constexpr int64_t kBlock = 512;

absl::StatusOr<MemoryFile> Open(int dir_fd, const std::string& name, const std::string& told,
                                int follow, SharedMapping::Access access) {
  // First without opening it in earnest: that alone may move a device or wake a pipe's other end.
  const FileHandle place(openat(dir_fd, name.c_str(), O_PATH | O_CLOEXEC | follow));
  struct stat status = {};
  struct statfs system = {};
  if (!place.valid() || fstat(place.fd(), &status) != 0 || fstatfs(place.fd(), &system) != 0) {
    return BadHandle(told, std::strerror(errno));
  }
  const bool huge = system.f_type == HUGETLBFS_MAGIC;
  if (!S_ISREG(status.st_mode) || (system.f_type != TMPFS_MAGIC && !huge)) {
    return BadHandle(told, "not a plain file in memory (shm_open, memfd_create, hugetlbfs)");
  }
  const int mode = access == SharedMapping::Access::kReadWrite ? O_RDWR : O_RDONLY;
  MemoryFile file;
  file.handle =
      FileHandle(open(PathOfDescriptor(getpid(), place.fd()).c_str(), mode | O_CLOEXEC | O_NOCTTY));
  if (!file.handle.valid()) return BadHandle(told, std::strerror(errno));
  file.id = {.device = status.st_dev, .inode = status.st_ino};
  file.size = ByteCount(status.st_size);
  file.allocated = ByteCount(status.st_blocks) * kBlock;
  file.page = ByteCount(huge ? static_cast<int64_t>(system.f_bsize) : sysconf(_SC_PAGESIZE));
  file.huge = huge;
  return file;
}

}  // namespace

absl::StatusOr<MemoryFile> OpenShm(const std::string& dir, const std::string& shm_name,
                                   SharedMapping::Access access) {
  if (shm_name.empty() || shm_name[0] != '/' ||
      !IsPlainFileName(absl::string_view(shm_name).substr(1))) {
    return BadHandle(shm_name, "not '/' and 1 to 255 characters of [A-Za-z0-9._-]");
  }
  PAGEFERRY_ASSIGN_OR_RETURN(const FileHandle folder, OpenFolder(dir));
  return Open(folder.fd(), shm_name.substr(1), shm_name, O_NOFOLLOW, access);
}

absl::StatusOr<MemoryFile> OpenMemoryFile(const std::string& path, SharedMapping::Access access) {
  if (path.empty() || path[0] != '/' || absl::StrContains(path, '\0')) {
    return BadHandle(path, "not an absolute path");
  }
  return Open(AT_FDCWD, path, path, 0, access);
}

std::string PathOfDescriptor(int64_t pid, int64_t fd) {
  return absl::StrCat("/proc/", pid, "/fd/", fd);
}

absl::Status BadHandle(absl::string_view handle, absl::string_view error) {
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                   absl::StrCat(handle, ": ", error),
                   {{"handle", std::string(handle)}, {"error", std::string(error)}});
}

}  // namespace pageferry::transport
