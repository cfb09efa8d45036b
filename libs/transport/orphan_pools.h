#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"

namespace pageferry::transport {

/// A pool's file whose agent has died. Value type.
struct OrphanPool {
  std::string file_name;
  ino_t inode = 0;
  ByteCount size;
};

/// The files in `dir` that have a pool's name, belong to this user and are locked by nobody, by
/// name; at most 65,536. kInvalidArgument, BAD_HANDLE: the folder cannot be read.
absl::StatusOr<std::vector<OrphanPool>> ListOrphanPools(const std::string& dir);

/// Removes one unless it was adopted or replaced meanwhile; true when it did (false
/// too while another process removes). Who has it mapped keeps the memory.
bool RemoveOrphanPool(const std::string& dir, const OrphanPool& orphan);

/// Removes the files of agents that died and did not come back within a grace time: after kill -9
/// the host's memory is not lost for ever. To be run at the agent's start and then now and again;
/// any number of agents on a host may do so at the same time.
///
/// Thread-compatible. The grace time runs from the first `Run` that saw the file without an agent.
class OrphanReaper {
 public:
  OrphanReaper(std::string dir, absl::Duration grace) : dir_(std::move(dir)), grace_(grace) {}

  /// Answers what it removed. Errors as ListOrphanPools.
  absl::StatusOr<std::vector<OrphanPool>> Run(MonotonicTime now);

 private:
  using Key = std::pair<std::string, ino_t>;

  const std::string dir_;
  const absl::Duration grace_;
  std::map<Key, MonotonicTime> first_seen_;
};

}  // namespace pageferry::transport
