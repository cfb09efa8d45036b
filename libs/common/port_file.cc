#include "libs/common/port_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace pageferry {
namespace {

absl::Status FileError(const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat("port file ", path, ": ", strerror(errno)));
}

}  // namespace

absl::Status WritePortFile(const std::string& path, const nlohmann::json& content) {
  // A rename would replace whatever stands there, a device too.
  struct stat info{};
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("port file ", path, ": exists and is no regular file"));
  }
  const std::string text = absl::StrCat(content.dump(), "\n");
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  constexpr mode_t kMode = 0644;
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (file < 0) return FileError(temporary);
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  absl::Status status = written ? absl::OkStatus() : FileError(temporary);
  close(file);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) == 0) return status;
  if (status.ok()) status = FileError(path);
  unlink(temporary.c_str());
  return status;
}

}  // namespace pageferry
