#include "libs/transport/pool_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::transport {
namespace {

bool IsPlain(absl::string_view text, size_t longest) {
  return !text.empty() && text.size() <= longest &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

bool Flock(int fd, int operation) {
  int result = -1;
  do {
    result = flock(fd, operation | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

absl::StatusOr<std::string> PoolFileName(absl::string_view agent_id, absl::string_view name) {
  if (!IsPlain(agent_id, 128)) {
    return InvalidField("agent_id", agent_id, "1 to 128 characters of [A-Za-z0-9._-]");
  }
  if (!IsPlain(name, 64)) {
    return InvalidField("name", name, "1 to 64 characters of [A-Za-z0-9._-]");
  }
  return absl::StrCat(kPoolFilePrefix, agent_id, ".", name);
}

bool IsPlainFileName(absl::string_view name) {
  return IsPlain(name, 255) && name != "." && name != "..";
}

FileHandle::~FileHandle() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<FileHandle> OpenFolder(const std::string& path) {
  FileHandle folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) return folder;
  const std::string error = std::strerror(errno);
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                   absl::StrCat("shared memory folder ", path, ": ", error),
                   {{"handle", path}, {"error", error}});
}

std::pair<PoolFile, OpenFailure> OpenPoolFile(int dir_fd, const std::string& name) {
  PoolFile file;
  // Not to be held up by a pipe.
  file.handle = FileHandle(
      openat(dir_fd, name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.handle.valid()) {
    return {PoolFile(), errno == ENOENT ? OpenFailure::kGone : OpenFailure::kNotOurs};
  }
  if (fstat(file.handle.fd(), &file.status) != 0 || !S_ISREG(file.status.st_mode) ||
      file.status.st_uid != geteuid() || file.status.st_nlink > 1) {
    return {PoolFile(), OpenFailure::kNotOurs};
  }
  if (file.status.st_nlink == 0) return {PoolFile(), OpenFailure::kGone};
  return {std::move(file), OpenFailure::kGone};
}

bool TryLock(int fd, FileLock lock) {
  if (lock == FileLock::kLooker) return Flock(fd, LOCK_SH);
  // A looker is there for microseconds. While an agent has the lock, looking fails.
  constexpr int kTries = 10'000;
  for (int i = 0; i < kTries; ++i) {
    if (Flock(fd, LOCK_EX)) return true;
    if (!Flock(fd, LOCK_SH)) return false;
    Flock(fd, LOCK_UN);
    std::this_thread::yield();
  }
  return false;
}

bool TryLockFolder(int dir_fd) { return Flock(dir_fd, LOCK_EX); }

bool StillNamed(int dir_fd, const std::string& name, int fd) {
  struct stat named = {};
  struct stat open_file = {};
  return fstatat(dir_fd, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         fstat(fd, &open_file) == 0 && named.st_dev == open_file.st_dev &&
         named.st_ino == open_file.st_ino;
}

}  // namespace pageferry::transport
