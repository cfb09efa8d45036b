#pragma once

#include <sys/stat.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pageferry::transport {

inline constexpr absl::string_view kPoolFilePrefix = "pageferry.";

/// "pageferry.<agent_id>.<name>". kInvalidArgument, INVALID_FIELD: the id is not 1 to 128, or the
/// name not 1 to 64, characters of [A-Za-z0-9._-].
absl::StatusOr<std::string> PoolFileName(absl::string_view agent_id, absl::string_view name);

/// True for 1 to 255 characters of [A-Za-z0-9._-] that are not "." or "..".
bool IsPlainFileName(absl::string_view name);

/// Owns a file descriptor. Movable. Thread-compatible.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int fd) : fd_(fd) {}
  FileHandle(FileHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileHandle();

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Opens a folder. kInvalidArgument, BAD_HANDLE with the system's error.
absl::StatusOr<FileHandle> OpenFolder(const std::string& path);

/// What is known of a file that has a pool's name. Symbolic links are never followed.
struct PoolFile {
  FileHandle handle;
  struct stat status = {};
};

enum class OpenFailure { kGone, kNotOurs };

/// Opens the file `name` for reading and writing if it is a plain file of our own user with that
/// one name; else says why not.
std::pair<PoolFile, OpenFailure> OpenPoolFile(int dir_fd, const std::string& name);

/// Who may hold the lock of a pool's file: its living agent, alone; or, for a moment, those who
/// look whether the agent lives. The lock goes with the process, however that ends.
enum class FileLock { kAgent, kLooker };

/// True when it was free. An agent waits for lookers, never for another agent.
bool TryLock(int fd, FileLock lock);

/// Takes the lock of the folder itself, for as long as it stays open; false when another process or
/// object has it. Those who remove files of the dead take it, since lookers do not shut each other
/// out.
bool TryLockFolder(int dir_fd);

/// True while `name` still is the file behind `fd`: false when it was removed before we locked it.
bool StillNamed(int dir_fd, const std::string& name, int fd);

}  // namespace pageferry::transport
