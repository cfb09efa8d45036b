#include "libs/transport/slicer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry::transport {
namespace {

constexpr size_t kMaxSegments = 4096;

// The items that a step's runs touch on one side.
struct Extent {
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t end = 0;

  void Add(int64_t run_first, int64_t count) {
    first = std::min(first, run_first);
    end = std::max(end, SaturatingAdd(run_first, count));
  }
};

absl::Status BadPages(absl::string_view what, int64_t first, int64_t count, int64_t allowed) {
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadPages,
                   absl::StrCat(what, ": ", count, " from ", first, ", ", allowed, " are there"),
                   {{"first", absl::StrCat(first)},
                    {"count", absl::StrCat(count)},
                    {"allowed", absl::StrCat(allowed)}});
}

// Where item 0 is. Sums are compared so that nothing can overflow.
absl::StatusOr<std::byte*> CheckSide(absl::string_view side, RegionBytes region, ByteCount offset,
                                     ByteCount item_size, const Extent& items) {
  if (region.data == nullptr) return BadPages(absl::StrCat(side, " region is unknown"), 0, 0, 0);
  if (item_size.value() <= 0 || offset.value() < 0 || offset.value() > region.size) {
    return BadPages(absl::StrCat(side, " bytes"), offset.value(), item_size.value(), region.size);
  }
  const int64_t fitting = (region.size - offset.value()) / item_size.value();
  if (items.end > fitting) {
    return BadPages(absl::StrCat(side, " items"), items.first, items.end - items.first, fitting);
  }
  return region.data + offset.value();
}

absl::StatusOr<CopyPlan::Part> PlanStep(const Step& step, FindRegion find_source,
                                        FindRegion find_target) {
  CopyPlan::Part part;
  Extent source_items;
  Extent target_items;
  for (const RunPair& run : step.runs) {
    if (run.source_first < 0 || run.target_first < 0 || run.count < 0) {
      return BadPages("run", std::min(run.source_first, run.target_first), run.count, 0);
    }
    if (run.count == 0) continue;
    source_items.Add(run.source_first, run.count);
    target_items.Add(run.target_first, run.count);
    part.runs.push_back(run);
  }
  if (part.runs.empty() || step.entries == nullptr) return CopyPlan::Part();
  part.entries.reserve(step.entries->size());
  for (const EntryPair& pair : *step.entries) {
    CopyPlan::Entry entry;
    PAGEFERRY_ASSIGN_OR_RETURN(
        entry.source, CheckSide("source", find_source(pair.source_region), pair.source_offset,
                                pair.item_size, source_items));
    PAGEFERRY_ASSIGN_OR_RETURN(
        entry.target, CheckSide("target", find_target(pair.target_region), pair.target_offset,
                                pair.item_size, target_items));
    entry.item_size = pair.item_size.value();
    part.entries.push_back(entry);
  }
  return part;
}

}  // namespace

absl::StatusOr<CopyPlan> PlanCopy(const std::vector<Step>& steps, FindRegion source,
                                  FindRegion target) {
  CopyPlan plan;
  for (const Step& step : steps) {
    PAGEFERRY_ASSIGN_OR_RETURN(CopyPlan::Part part, PlanStep(step, source, target));
    if (part.entries.empty()) continue;
    plan.parts.push_back(std::move(part));
  }
  plan.bytes = BatchBytes(steps);
  return plan;
}

Slicer::Slicer(CopyPlan plan, ByteCount slice_size)
    : plan_(std::move(plan)), slice_size_(std::max<int64_t>(slice_size.value(), 1)) {}

// Leaves the position at a byte that is to be copied, or at the end.
void Slicer::Advance(int64_t bytes) {
  const CopyPlan::Part& part = plan_.parts[part_];
  offset_ += bytes;
  if (offset_ < part.runs[run_].count * part.entries[entry_].item_size) return;
  offset_ = 0;
  if (++run_ < part.runs.size()) return;
  run_ = 0;
  if (++entry_ < part.entries.size()) return;
  entry_ = 0;
  ++part_;
}

void Slicer::Next(std::vector<Segment>& segments) {
  segments.clear();
  int64_t left = slice_size_;
  while (left > 0 && has_more()) {
    const CopyPlan::Part& part = plan_.parts[part_];
    const CopyPlan::Entry& entry = part.entries[entry_];
    const RunPair& run = part.runs[run_];
    const int64_t size = std::min(left, run.count * entry.item_size - offset_);
    const std::byte* source = entry.source + run.source_first * entry.item_size + offset_;
    std::byte* target = entry.target + run.target_first * entry.item_size + offset_;
    Segment* last = segments.empty() ? nullptr : &segments.back();
    if (last != nullptr && last->source + last->size == source &&
        last->target + last->size == target) {
      last->size += static_cast<size_t>(size);
    } else {
      if (segments.size() == kMaxSegments) return;
      segments.push_back({source, target, static_cast<size_t>(size)});
    }
    left -= size;
    Advance(size);
  }
}

}  // namespace pageferry::transport
