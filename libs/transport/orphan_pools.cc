#include "libs/transport/orphan_pools.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/transport/pool_file.h"

namespace pageferry::transport {
namespace {

constexpr size_t kMaxOrphans = 65'536;

// The locked file, or an invalid one when it is not there, not ours, or an agent has it.
PoolFile LockOrphan(int dir_fd, const std::string& name) {
  PoolFile file = OpenPoolFile(dir_fd, name).first;
  if (!file.handle.valid() || !TryLock(file.handle.fd(), FileLock::kLooker)) return PoolFile();
  return file;
}

}  // namespace

absl::StatusOr<std::vector<OrphanPool>> ListOrphanPools(const std::string& dir) {
  PAGEFERRY_ASSIGN_OR_RETURN(const FileHandle folder, OpenFolder(dir));
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(dir.c_str()), &closedir);
  if (entries == nullptr) {
    const std::string error = std::strerror(errno);
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                     absl::StrCat(dir, ": ", error), {{"handle", dir}, {"error", error}});
  }
  std::vector<OrphanPool> orphans;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (!absl::StartsWith(name, kPoolFilePrefix) || orphans.size() == kMaxOrphans) continue;
    const PoolFile file = LockOrphan(folder.fd(), name);
    if (!file.handle.valid()) continue;
    orphans.push_back({name, file.status.st_ino, ByteCount(file.status.st_size)});
  }
  std::sort(orphans.begin(), orphans.end(),
            [](const auto& a, const auto& b) { return a.file_name < b.file_name; });
  return orphans;
}

bool RemoveOrphanPool(const std::string& dir, const OrphanPool& orphan) {
  const auto folder = OpenFolder(dir);
  if (!folder.ok() || !TryLockFolder(folder->fd()) || !IsPlainFileName(orphan.file_name)) {
    return false;
  }
  // While we look, no agent can adopt it; whoever waits for our lock sees then that it has gone.
  const PoolFile file = LockOrphan(folder->fd(), orphan.file_name);
  return file.handle.valid() && file.status.st_ino == orphan.inode &&
         StillNamed(folder->fd(), orphan.file_name, file.handle.fd()) &&
         unlinkat(folder->fd(), orphan.file_name.c_str(), 0) == 0;
}

absl::StatusOr<std::vector<OrphanPool>> OrphanReaper::Run(MonotonicTime now) {
  PAGEFERRY_ASSIGN_OR_RETURN(const std::vector<OrphanPool> orphans, ListOrphanPools(dir_));
  std::map<Key, MonotonicTime> still;
  std::vector<OrphanPool> removed;
  for (const OrphanPool& orphan : orphans) {
    const Key key{orphan.file_name, orphan.inode};
    const auto seen = first_seen_.find(key);
    const MonotonicTime since = seen == first_seen_.end() ? now : seen->second;
    if (now - since >= grace_ && RemoveOrphanPool(dir_, orphan)) {
      removed.push_back(orphan);
    } else {
      still.emplace(key, since);
    }
  }
  first_seen_ = std::move(still);
  return removed;
}

}  // namespace pageferry::transport
