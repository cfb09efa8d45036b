#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libs/common/page_runs.h"

namespace pageferry::agent {

/// The pages that a room has named so far, so that none is named twice.
///
/// Thread-compatible. Pure. Adjoining runs are kept as one; O(log n) a run.
class PageSet {
 public:
  /// Adds all pages of `runs`, or none. kInvalidArgument, BAD_PAGES: a run is not within
  /// [0, pool_pages), or names a page twice or again.
  absl::Status Add(absl::Span<const PageRun> runs, int64_t pool_pages);
  void Clear() { ends_.clear(); }

 private:
  bool Overlaps(const PageRun& run) const;

  absl::btree_map<int64_t, int64_t> ends_;  // first page -> page behind the last
};

}  // namespace pageferry::agent
