#include "services/bootstrap/change_index.h"

#include <algorithm>

namespace pageferry::bootstrap {

void ChangeIndex::Apply(TableVersion version, const std::vector<Change>& changes) {
  version_ = version;
  for (const Change& change : changes) {
    Entry& entry = entries_[change.key];
    Forget(change.key, entry);
    if (change.engine_level || change.removed) entry.level = version;
    entry.changed = version;
    entry.removed = change.removed;
    changes_.emplace(entry.changed, change.key);
    levels_.emplace(entry.level, change.key);
    if (entry.removed) removed_.emplace(entry.changed, change.key);
  }
  while (removed_.size() > max_removed_) {
    const auto [at, key] = *removed_.begin();
    oldest_ = std::max(oldest_, at);
    Forget(key, entries_.at(key));
    entries_.erase(key);
  }
}

void ChangeIndex::VisitSince(
    TableVersion since, bool engine_level,
    absl::FunctionRef<void(const EngineKey& key, bool removed)> visit) const {
  const Order& order = engine_level ? levels_ : changes_;
  for (auto at = order.lower_bound({since.Next(), {}}); at != order.end(); ++at) {
    visit(at->second, entries_.at(at->second).removed);
  }
}

void ChangeIndex::Forget(const EngineKey& key, const Entry& entry) {
  changes_.erase({entry.changed, key});
  levels_.erase({entry.level, key});
  if (entry.removed) removed_.erase({entry.changed, key});
}

}  // namespace pageferry::bootstrap
