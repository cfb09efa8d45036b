#include "libs/common/page_runs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

absl::Status BadPages(absl::StatusCode code, const PageRun& run, absl::string_view allowed) {
  return MakeError(
      code, Reason::kBadPages,
      absl::StrCat("page run first ", run.first, " count ", run.count, ", allowed is ", allowed),
      {{"first", absl::StrCat(run.first)},
       {"count", absl::StrCat(run.count)},
       {"allowed", std::string(allowed)}});
}

bool Fits(const PageRun& run, int64_t pool_pages) {
  return run.first >= 0 && run.count >= 1 && run.count <= pool_pages &&
         run.first <= pool_pages - run.count;
}

absl::Status CheckEach(absl::Span<const PageRun> runs, int64_t pool_pages) {
  for (const PageRun& run : runs) {
    if (!Fits(run, pool_pages)) {
      return BadPages(absl::StatusCode::kInvalidArgument, run,
                      absl::StrCat("one page or more within [0, ", pool_pages, ")"));
    }
  }
  return absl::OkStatus();
}

void Append(const PageRun& run, std::vector<PageRun>& merged) {
  if (run.count <= 0) return;
  if (!merged.empty() && merged.back().first + merged.back().count == run.first) {
    merged.back().count += run.count;
  } else {
    merged.push_back(run);
  }
}

}  // namespace

absl::Status CheckPageRuns(absl::Span<const PageRun> runs, int64_t pool_pages) {
  PAGEFERRY_RETURN_IF_ERROR(CheckEach(runs, pool_pages));
  const auto before = [](const PageRun& a, const PageRun& b) { return a.first < b.first; };
  std::vector<PageRun> sorted;
  if (!std::ranges::is_sorted(runs, before)) {
    sorted.assign(runs.begin(), runs.end());
    std::ranges::sort(sorted, before);
    runs = sorted;
  }
  for (size_t i = 1; i < runs.size(); ++i) {
    if (runs[i - 1].first + runs[i - 1].count > runs[i].first) {
      return BadPages(absl::StatusCode::kInvalidArgument, runs[i], "each page once");
    }
  }
  return absl::OkStatus();
}

int64_t TotalPages(absl::Span<const PageRun> runs) {
  int64_t total = 0;
  for (const PageRun& run : runs) total = SaturatingAdd(total, std::max<int64_t>(run.count, 0));
  return total;
}

std::vector<PageRun> MergeRuns(absl::Span<const PageRun> runs) {
  std::vector<PageRun> merged;
  for (const PageRun& run : runs) Append(run, merged);
  return merged;
}

absl::StatusOr<std::vector<PageRun>> SliceRuns(absl::Span<const PageRun> runs, int64_t first,
                                               int64_t count) {
  const int64_t total = TotalPages(runs);
  if (first < 0 || count < 0 || first > total || count > total - first) {
    return BadPages(absl::StatusCode::kOutOfRange, {first, count},
                    absl::StrCat("positions within [0, ", total, ")"));
  }
  std::vector<PageRun> slice;
  for (const PageRun& run : runs) {
    if (count == 0) break;
    if (run.count <= 0) continue;
    if (first >= run.count) {
      first -= run.count;
      continue;
    }
    const int64_t taken = std::min(run.count - first, count);
    Append({run.first + first, taken}, slice);
    first = 0;
    count -= taken;
  }
  return slice;
}

absl::StatusOr<std::vector<RunPair>> PairRuns(absl::Span<const PageRun> source,
                                              absl::Span<const PageRun> target) {
  constexpr int64_t kAnyPool = std::numeric_limits<int64_t>::max();
  PAGEFERRY_RETURN_IF_ERROR(CheckEach(source, kAnyPool), Annotate(_, "source"));
  PAGEFERRY_RETURN_IF_ERROR(CheckEach(target, kAnyPool), Annotate(_, "target"));
  const int64_t sent = TotalPages(source);
  const int64_t granted = TotalPages(target);
  if (sent != granted || sent == kAnyPool) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kPageCountMismatch,
                     absl::StrCat("pages sent ", sent, " granted ", granted),
                     {{"granted", absl::StrCat(granted)}, {"sent", absl::StrCat(sent)}});
  }
  std::vector<RunPair> pairs;
  size_t s = 0;
  size_t t = 0;
  int64_t source_done = 0;
  int64_t target_done = 0;
  while (s < source.size()) {
    const int64_t count = std::min(source[s].count - source_done, target[t].count - target_done);
    const RunPair next{source[s].first + source_done, target[t].first + target_done, count};
    if (!pairs.empty() && pairs.back().source_first + pairs.back().count == next.source_first &&
        pairs.back().target_first + pairs.back().count == next.target_first) {
      pairs.back().count += count;
    } else {
      pairs.push_back(next);
    }
    source_done += count;
    target_done += count;
    if (source_done == source[s].count) {
      ++s;
      source_done = 0;
    }
    if (target_done == target[t].count) {
      ++t;
      target_done = 0;
    }
  }
  return pairs;
}

std::ostream& operator<<(std::ostream& out, const PageRun& run) {
  return out << "first " << run.first << " count " << run.count;
}

std::ostream& operator<<(std::ostream& out, const RunPair& pair) {
  return out << "source " << pair.source_first << " target " << pair.target_first << " count "
             << pair.count;
}

}  // namespace pageferry
