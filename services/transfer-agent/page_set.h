#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libs/common/page_runs.h"

namespace pageferry::agent {

/// Pages that are taken, so that none is taken twice: those that a room has named so far, or those
/// that live rooms may write.
///
/// Thread-compatible. Pure. Adjoining runs are kept as one; O(log n) a run.
class PageSet {
 public:
  /// Adds all pages of `runs`, or none. kInvalidArgument, BAD_PAGES: a run is not within
  /// [0, pool_pages), or names a page twice or again.
  absl::Status Add(absl::Span<const PageRun> runs, int64_t pool_pages);
  /// Takes out pages that were added.
  void Remove(absl::Span<const PageRun> runs);
  void Clear() { ends_.clear(); }
  bool empty() const { return ends_.empty(); }

 private:
  bool Overlaps(const PageRun& run) const;

  absl::btree_map<int64_t, int64_t> ends_;  // first page -> page behind the last
};

}  // namespace pageferry::agent
