#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "libs/transport/page_copy.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

/// The bytes of a region in this process. Value type; borrows.
struct RegionBytes {
  std::byte* data = nullptr;
  int64_t size = 0;
};

/// A place in memory of another process: a region that it told, and a byte in it. Value type.
struct RemotePlace {
  RegionId region;
  int64_t offset = 0;

  friend RemotePlace operator+(RemotePlace place, int64_t bytes) {
    return {place.region, place.offset + bytes};
  }
  friend bool operator==(const RemotePlace&, const RemotePlace&) = default;
};

/// `size` bytes that go to `target`. `Source` says where from: `Segment` has memory that this
/// process can read, `RemoteSegment` memory that it must ask for. Value type; borrows.
template <class Source>
struct BasicSegment {
  Source source{};
  std::byte* target = nullptr;
  size_t size = 0;
};
using RemoteSegment = BasicSegment<RemotePlace>;

/// A batch whose every range lies inside its regions. The part of an entry's region that the step's
/// runs index begins at source and target.
template <class Source>
struct BasicPlan {
  struct Entry {
    Source source{};
    std::byte* target = nullptr;
    int64_t item_size = 0;
  };
  struct Part {
    std::vector<Entry> entries;
    std::vector<RunPair> runs;
  };
  std::vector<Part> parts;
  ByteCount bytes;
};
using CopyPlan = BasicPlan<const std::byte*>;
using PullPlan = BasicPlan<RemotePlace>;

/// Finds a region; null data when it is unknown.
using FindRegion = absl::FunctionRef<RegionBytes(RegionId)>;

/// Checks all ranges of `steps`, in time proportional to entries plus runs. Steps without runs or
/// entries move nothing and are fine. kInvalidArgument, BAD_PAGES with "first", "count", "allowed".
absl::StatusOr<CopyPlan> PlanCopy(const std::vector<Step>& steps, FindRegion source,
                                  FindRegion target);
/// The same where the source is in another process: `source_size` answers the size that it told of
/// a region, and -1 for one that it did not tell.
absl::StatusOr<PullPlan> PlanPull(const std::vector<Step>& steps,
                                  absl::FunctionRef<int64_t(RegionId)> source_size,
                                  FindRegion target);

/// Cuts a plan into slices. Items that follow each other on both sides become one segment.
///
/// Thread-compatible.
template <class Source, class SegmentOut>
class BasicSlicer {
 public:
  /// Slices have `slice_size` bytes, the last one fewer; and fewer where items are so small that
  /// there would be more than 4,096 segments.
  BasicSlicer(BasicPlan<Source> plan, ByteCount slice_size);

  bool has_more() const { return part_ < plan_.parts.size(); }
  /// The next slice in place of what `segments` held; empty only when there is none.
  void Next(std::vector<SegmentOut>& segments);

 private:
  void Advance(int64_t bytes);

  BasicPlan<Source> plan_;
  const int64_t slice_size_;
  size_t part_ = 0;
  size_t entry_ = 0;
  size_t run_ = 0;
  int64_t offset_ = 0;  // bytes of the run that are done
};
using Slicer = BasicSlicer<const std::byte*, Segment>;
using PullSlicer = BasicSlicer<RemotePlace, RemoteSegment>;

extern template class BasicSlicer<const std::byte*, Segment>;
extern template class BasicSlicer<RemotePlace, RemoteSegment>;

}  // namespace pageferry::transport
