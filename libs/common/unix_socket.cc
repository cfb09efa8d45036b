#include "libs/common/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

constexpr mode_t kSocketMode = 0660;

absl::Status InUse(const std::string& path) {
  const std::string address = absl::StrCat("unix:", path);
  return MakeError(absl::StatusCode::kUnavailable, Reason::kInUse,
                   absl::StrCat("address ", address, " is in use by another server"),
                   {{"address", address}});
}

absl::Status SystemError(int error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

// Another server removes its lock file at its end; a lock on a removed file protects nothing.
bool StillNamed(int fd, const std::string& lock_path) {
  struct stat held{};
  struct stat named{};
  return fstat(fd, &held) == 0 && stat(lock_path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

absl::StatusOr<int> Lock(const std::string& path) {
  const std::string lock_path = path + ".lock";
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kSocketMode);
    if (fd < 0) return SystemError(errno, "cannot create the lock file", lock_path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(fd);
      return error == EWOULDBLOCK ? InUse(path) : SystemError(error, "cannot lock", lock_path);
    }
    if (StillNamed(fd, lock_path)) return fd;
    close(fd);
  }
  return InUse(path);
}

// Connects to see whether a server lives that took no lock.
absl::Status RemoveStale(const std::string& path) {
  struct stat file{};
  if (lstat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? absl::OkStatus() : SystemError(errno, "cannot look at", path);
  }
  if (!S_ISSOCK(file.st_mode)) {
    return InvalidField("address", absl::StrCat("unix:", path), "a path that is free or a socket");
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return SystemError(errno, "cannot create a socket for", path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int result = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = result == 0 ? 0 : errno;
  close(fd);
  if (error != ECONNREFUSED && error != ENOENT) return InUse(path);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return SystemError(errno, "cannot remove the stale socket", path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UnixSocketGuard> UnixSocketGuard::Acquire(absl::string_view path) {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path) ||
      absl::StrContains(path, '\0')) {
    return InvalidField("address", absl::StrCat("unix:", path), "a path of 1 to 107 bytes");
  }
  std::string text(path);
  PAGEFERRY_ASSIGN_OR_RETURN(const int lock_fd, Lock(text));
  UnixSocketGuard guard(std::move(text), lock_fd);
  if (absl::Status status = RemoveStale(guard.path_); !status.ok()) {
    unlink((guard.path_ + ".lock").c_str());
    close(std::exchange(guard.lock_fd_, -1));  // the socket there is not ours to remove
    return status;
  }
  return guard;
}

UnixSocketGuard::UnixSocketGuard(UnixSocketGuard&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

UnixSocketGuard& UnixSocketGuard::operator=(UnixSocketGuard&& other) noexcept {
  if (this != &other) {
    Release();
    path_ = std::move(other.path_);
    lock_fd_ = std::exchange(other.lock_fd_, -1);
  }
  return *this;
}

UnixSocketGuard::~UnixSocketGuard() { Release(); }

void UnixSocketGuard::Release() {
  if (lock_fd_ < 0) return;
  unlink(path_.c_str());
  unlink((path_ + ".lock").c_str());
  close(std::exchange(lock_fd_, -1));
}

absl::Status UnixSocketGuard::RestrictMode() const {
  if (chmod(path_.c_str(), kSocketMode) != 0) {
    return SystemError(errno, "cannot set the mode of", path_);
  }
  return absl::OkStatus();
}

ScopedSocketUmask::ScopedSocketUmask() : previous_(umask(0777 & ~kSocketMode)) {}
ScopedSocketUmask::~ScopedSocketUmask() { umask(previous_); }

}  // namespace pageferry
