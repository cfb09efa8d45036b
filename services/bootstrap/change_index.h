#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "libs/common/ids.h"
#include "services/bootstrap/records.h"

namespace pageferry::bootstrap {

/// Which engines changed last at which version, so that a reader can catch up from any version.
///
/// Thread-compatible; pure. Each engine is in it once, with its last change alone, so a reader that
/// is far behind costs no more than one that starts anew. Engines that went are kept as well, the
/// last `max_removed` of them: from before the oldest of those nobody can catch up.
class ChangeIndex {
 public:
  /// Readers may catch up from `start` on.
  ChangeIndex(TableVersion start, size_t max_removed)
      : max_removed_(max_removed), oldest_(start), version_(start) {}

  struct Change {
    EngineKey key;
    bool removed = false;
    bool engine_level = false;  ///< see PortTable::Change
  };

  /// Takes what became visible at `version`, which grows from call to call.
  void Apply(TableVersion version, const std::vector<Change>& changes);

  /// Calls `visit(key, removed)` for what changed after `since`, oldest first; engine-level changes
  /// alone if asked.
  void VisitSince(TableVersion since, bool engine_level,
                  absl::FunctionRef<void(const EngineKey& key, bool removed)> visit) const;

  /// Whether all that changed after `since` is still known.
  bool CanResume(TableVersion since) const { return since >= oldest_; }

  TableVersion version() const { return version_; }

 private:
  struct Entry {
    TableVersion changed;
    TableVersion level;
    bool removed = false;
  };
  using Order = absl::btree_set<std::pair<TableVersion, EngineKey>>;

  void Forget(const EngineKey& key, const Entry& entry);

  const size_t max_removed_;
  absl::flat_hash_map<EngineKey, Entry> entries_;
  Order changes_;
  Order levels_;
  Order removed_;
  TableVersion oldest_;
  TableVersion version_;
};

}  // namespace pageferry::bootstrap
