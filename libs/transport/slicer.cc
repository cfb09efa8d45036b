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

// A region, in the terms in which `Source` names bytes.
template <class Source>
struct Side {
  Source base{};
  int64_t size = -1;  // unknown
};

Side<std::byte*> Found(RegionBytes region) {
  return {region.data, region.data == nullptr ? -1 : region.size};
}

// Where item 0 is. Sums are compared so that nothing can overflow.
template <class Source>
absl::StatusOr<Source> CheckSide(absl::string_view name, const Side<Source>& side, ByteCount offset,
                                 ByteCount item_size, const Extent& items) {
  if (side.size < 0) return BadPages(absl::StrCat(name, " region is unknown"), 0, 0, 0);
  if (item_size.value() <= 0 || offset.value() < 0 || offset.value() > side.size) {
    return BadPages(absl::StrCat(name, " bytes"), offset.value(), item_size.value(), side.size);
  }
  const int64_t fitting = (side.size - offset.value()) / item_size.value();
  if (items.end > fitting) {
    return BadPages(absl::StrCat(name, " items"), items.first, items.end - items.first, fitting);
  }
  return side.base + offset.value();
}

template <class Source>
absl::StatusOr<typename BasicPlan<Source>::Part> PlanStep(
    const Step& step, absl::FunctionRef<Side<Source>(RegionId)> find_source,
    FindRegion find_target) {
  typename BasicPlan<Source>::Part part;
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
  if (part.runs.empty() || step.entries == nullptr) return typename BasicPlan<Source>::Part();
  part.entries.reserve(step.entries->size());
  for (const EntryPair& pair : *step.entries) {
    typename BasicPlan<Source>::Entry entry;
    PAGEFERRY_ASSIGN_OR_RETURN(
        entry.source, CheckSide("source", find_source(pair.source_region), pair.source_offset,
                                pair.item_size, source_items));
    PAGEFERRY_ASSIGN_OR_RETURN(entry.target,
                               CheckSide("target", Found(find_target(pair.target_region)),
                                         pair.target_offset, pair.item_size, target_items));
    entry.item_size = pair.item_size.value();
    part.entries.push_back(entry);
  }
  return part;
}

template <class Source>
absl::StatusOr<BasicPlan<Source>> Plan(const std::vector<Step>& steps,
                                       absl::FunctionRef<Side<Source>(RegionId)> source,
                                       FindRegion target) {
  BasicPlan<Source> plan;
  for (const Step& step : steps) {
    PAGEFERRY_ASSIGN_OR_RETURN(auto part, PlanStep<Source>(step, source, target));
    if (part.entries.empty()) continue;
    plan.parts.push_back(std::move(part));
  }
  plan.bytes = BatchBytes(steps);
  return plan;
}

}  // namespace

absl::StatusOr<CopyPlan> PlanCopy(const std::vector<Step>& steps, FindRegion source,
                                  FindRegion target) {
  const auto find = [&](RegionId id) -> Side<const std::byte*> {
    const Side<std::byte*> found = Found(source(id));
    return {found.base, found.size};
  };
  return Plan<const std::byte*>(steps, find, target);
}

absl::StatusOr<PullPlan> PlanPull(const std::vector<Step>& steps,
                                  absl::FunctionRef<int64_t(RegionId)> source_size,
                                  FindRegion target) {
  const auto find = [&](RegionId id) -> Side<RemotePlace> { return {{id, 0}, source_size(id)}; };
  return Plan<RemotePlace>(steps, find, target);
}

template <class Source, class SegmentOut>
BasicSlicer<Source, SegmentOut>::BasicSlicer(BasicPlan<Source> plan, ByteCount slice_size)
    : plan_(std::move(plan)), slice_size_(std::max<int64_t>(slice_size.value(), 1)) {}

// Leaves the position at a byte that is to be copied, or at the end.
template <class Source, class SegmentOut>
void BasicSlicer<Source, SegmentOut>::Advance(int64_t bytes) {
  const auto& part = plan_.parts[part_];
  offset_ += bytes;
  if (offset_ < part.runs[run_].count * part.entries[entry_].item_size) return;
  offset_ = 0;
  if (++run_ < part.runs.size()) return;
  run_ = 0;
  if (++entry_ < part.entries.size()) return;
  entry_ = 0;
  ++part_;
}

template <class Source, class SegmentOut>
void BasicSlicer<Source, SegmentOut>::Next(std::vector<SegmentOut>& segments) {
  segments.clear();
  int64_t left = slice_size_;
  while (left > 0 && has_more()) {
    const auto& part = plan_.parts[part_];
    const auto& entry = part.entries[entry_];
    const RunPair& run = part.runs[run_];
    const int64_t size = std::min(left, run.count * entry.item_size - offset_);
    const Source source = entry.source + run.source_first * entry.item_size + offset_;
    std::byte* target = entry.target + run.target_first * entry.item_size + offset_;
    SegmentOut* last = segments.empty() ? nullptr : &segments.back();
    if (last != nullptr && last->source + static_cast<int64_t>(last->size) == source &&
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

template class BasicSlicer<const std::byte*, Segment>;
template class BasicSlicer<RemotePlace, RemoteSegment>;

}  // namespace pageferry::transport
