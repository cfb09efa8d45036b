#include "services/transfer-agent/engine_table.h"

#include <algorithm>
#include <set>
#include <utility>

namespace pageferry::agent {

std::vector<EngineId> EngineTable::Apply(TableEvent event) {
  std::vector<EngineId> changed;
  if (auto* const snapshot = std::get_if<TableSnapshot>(&event.what)) {
    warming_up_ = snapshot->warming_up;
    std::set<EngineId> present;
    for (EngineRecord& record : snapshot->engines) {
      const EngineId id = record.id;
      present.insert(id);
      if (Put(std::move(record))) changed.push_back(id);
    }
    if (!warming_up_) {
      for (auto it = engines_.begin(); it != engines_.end();) {
        if (present.contains(it->first)) {
          ++it;
        } else {
          changed.push_back(it->first);
          it = engines_.erase(it);
        }
      }
    }
    version_ = event.version;
    return changed;
  }
  if (auto* const change = std::get_if<TableChange>(&event.what)) {
    for (EngineRecord& record : change->engines) {
      const EngineId id = record.id;
      if (Put(std::move(record))) changed.push_back(id);
    }
    for (const EngineId& id : change->removed) {
      if (!warming_up_ && engines_.erase(id) > 0) changed.push_back(id);
    }
  }
  version_ = std::max(version_, event.version);
  return changed;
}

const EngineRecord* EngineTable::Find(const EngineId& engine) const {
  const auto found = engines_.find(engine);
  return found == engines_.end() ? nullptr : &found->second;
}

bool EngineTable::Put(EngineRecord record) {
  const auto [found, added] = engines_.try_emplace(record.id, record);
  if (added) return true;
  EngineRecord& old = found->second;
  if (warming_up_ && old.shape == record.shape && old.role == record.role) {
    record.ranks.insert(old.ranks.begin(), old.ranks.end());
    if (old.ready && !record.ready) {
      record.ready = true;
      record.missing.clear();
      record.missing_count = 0;
    }
  }
  if (old == record) return false;
  old = std::move(record);
  return true;
}

}  // namespace pageferry::agent
