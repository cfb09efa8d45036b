#include "services/transfer-agent/page_set.h"

#include <cstdint>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "libs/common/error.h"
#include "libs/common/page_runs.h"
#include "libs/common/status.h"

namespace pageferry::agent {

bool PageSet::Overlaps(const PageRun& run) const {
  const auto next = ends_.lower_bound(run.first);
  if (next != ends_.end() && next->first < run.first + run.count) return true;
  return next != ends_.begin() && std::prev(next)->second > run.first;
}

absl::Status PageSet::Add(absl::Span<const PageRun> runs, int64_t pool_pages) {
  PAGEFERRY_RETURN_IF_ERROR(CheckPageRuns(runs, pool_pages));
  for (const PageRun& run : runs) {
    if (!Overlaps(run)) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadPages,
                     absl::StrCat("pages named again: first ", run.first, " count ", run.count),
                     {{"first", absl::StrCat(run.first)},
                      {"count", absl::StrCat(run.count)},
                      {"allowed", "each page once"}});
  }
  for (const PageRun& run : runs) {
    int64_t first = run.first;
    int64_t end = run.first + run.count;
    auto next = ends_.lower_bound(first);
    if (next != ends_.end() && next->first == end) {
      end = next->second;
      next = ends_.erase(next);
    }
    if (next != ends_.begin() && std::prev(next)->second == first) {
      std::prev(next)->second = end;
    } else {
      ends_.emplace_hint(next, first, end);
    }
  }
  return absl::OkStatus();
}

void PageSet::Remove(absl::Span<const PageRun> runs) {
  for (const PageRun& run : runs) {
    if (run.count == 0) continue;
    const int64_t end = run.first + run.count;
    const auto found = std::prev(ends_.upper_bound(run.first));
    const auto [whole_first, whole_end] = *found;
    if (whole_first == run.first) {
      ends_.erase(found);
    } else {
      found->second = run.first;
    }
    if (end < whole_end) ends_.emplace(end, whole_end);
  }
}

}  // namespace pageferry::agent
