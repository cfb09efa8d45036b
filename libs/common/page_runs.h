#pragma once

#include <compare>
#include <cstdint>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace pageferry {

/// `count` contiguous pages of one pool, from page `first`. Value type. Good in itself when
/// `first >= 0`, `count >= 1` and `first + count` fits an int64; see CheckPageRuns.
struct PageRun {
  int64_t first = 0;
  int64_t count = 0;

  friend auto operator<=>(const PageRun&, const PageRun&) = default;
};

/// `count` pages to copy from `source_first` on to `target_first` on. Value type.
struct RunPair {
  int64_t source_first = 0;
  int64_t target_first = 0;
  int64_t count = 0;

  friend auto operator<=>(const RunPair&, const RunPair&) = default;
};

/// A list of runs stands for the concatenation of their pages, in order. Time and memory of all
/// functions here depend on the number of runs, never on the number of pages. Pure.

/// Checks a list that a peer or engine sent: each run good in itself and inside a pool of
/// `pool_pages` pages, no page twice. An empty list is good. O(n log n).
/// kInvalidArgument, BAD_PAGES with "first", "count", "allowed": the first offender. Do not retry.
absl::Status CheckPageRuns(absl::Span<const PageRun> runs, int64_t pool_pages);

/// The number of pages in `runs`; counts below 0 count as 0, the sum saturates.
int64_t TotalPages(absl::Span<const PageRun> runs);

/// The same pages in the same order in as few runs as possible; drops empty runs. The runs must be
/// good in themselves.
std::vector<PageRun> MergeRuns(absl::Span<const PageRun> runs);

/// The pages at positions [first, first + count) of the concatenation, merged.
/// kOutOfRange, BAD_PAGES: that is not within the list, or a bound is negative.
absl::StatusOr<std::vector<PageRun>> SliceRuns(absl::Span<const PageRun> runs, int64_t first,
                                               int64_t count);

/// Pairs the n-th source page with the n-th target page, in maximal runs.
/// kFailedPrecondition, PAGE_COUNT_MISMATCH with "granted" (target) and "sent" (source): the totals
/// differ. kInvalidArgument, BAD_PAGES: a run is not good in itself.
absl::StatusOr<std::vector<RunPair>> PairRuns(absl::Span<const PageRun> source,
                                              absl::Span<const PageRun> target);

std::ostream& operator<<(std::ostream& out, const PageRun& run);
std::ostream& operator<<(std::ostream& out, const RunPair& pair);

}  // namespace pageferry
