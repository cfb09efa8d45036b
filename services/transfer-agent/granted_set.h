#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/page_set.h"
#include "services/transfer-agent/transfer_plan.h"

namespace pageferry::agent {

/// What the live rooms of a decode engine may write: pages, aux slots, state indices. Two rooms
/// with a page in common would both succeed, and one of them would have the other's bytes.
///
/// Thread-compatible. Pure. O(log n) a run.
class GrantedSet {
 public:
  /// Takes all that `receive` names, which CheckReceive has found good, or nothing.
  /// kInvalidArgument, BAD_PAGES: a room that is not drained may write some of it.
  absl::Status Add(const OpenReceive& receive, const ProfileSizes& sizes);
  /// Gives back what Add took.
  void Remove(const OpenReceive& receive);

  bool empty() const;

 private:
  PageSet pages_;
  PageSet slots_;
  absl::btree_map<int32_t, PageSet> states_;  // by component
};

}  // namespace pageferry::agent
