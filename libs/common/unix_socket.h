#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pageferry {

/// The right to bind one unix socket path, which gRPC alone does not guard: a second server would
/// silently replace a living one's socket.
///
/// Holds an exclusive lock on `<path>.lock`, which the kernel lets go when the process dies in
/// whatever way. Movable handle; the destructor removes the socket and the lock file.
class UnixSocketGuard {
 public:
  /// Takes the lock, makes sure that nobody answers on `path`, and removes a stale socket there.
  /// kUnavailable, IN_USE with "address": another server lives. Choose another path.
  /// kInvalidArgument, INVALID_FIELD: too long for a socket (107 bytes), or not a socket.
  /// kPermissionDenied, kNotFound and others: the system's error on the folder.
  static absl::StatusOr<UnixSocketGuard> Acquire(absl::string_view path);

  UnixSocketGuard(UnixSocketGuard&& other) noexcept;
  UnixSocketGuard& operator=(UnixSocketGuard&& other) noexcept;
  ~UnixSocketGuard();

  const std::string& path() const { return path_; }

  /// Sets the mode of the bound socket to 0660: its user and group may connect.
  absl::Status RestrictMode() const;

 private:
  UnixSocketGuard(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  void Release();

  std::string path_;
  int lock_fd_ = -1;
};

/// Sets the process's umask to 0117 while it lives, so that a socket bound meanwhile is never open
/// to others, not even before `RestrictMode`. The umask belongs to the whole process: files that
/// other threads create in that moment get at most mode 0660 too.
class ScopedSocketUmask {
 public:
  ScopedSocketUmask();
  ~ScopedSocketUmask();
  ScopedSocketUmask(const ScopedSocketUmask&) = delete;
  ScopedSocketUmask& operator=(const ScopedSocketUmask&) = delete;

 private:
  unsigned int previous_;
};

}  // namespace pageferry
