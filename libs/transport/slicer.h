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

/// A batch whose every range lies inside its regions. The part of an entry's region that the step's
/// runs index begins at source and target.
struct CopyPlan {
  struct Entry {
    const std::byte* source = nullptr;
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

/// Finds a region; null data when it is unknown.
using FindRegion = absl::FunctionRef<RegionBytes(RegionId)>;

/// Checks all ranges of `steps`, in time proportional to entries plus runs. Steps without runs or
/// entries move nothing and are fine. kInvalidArgument, BAD_PAGES with "first", "count", "allowed".
absl::StatusOr<CopyPlan> PlanCopy(const std::vector<Step>& steps, FindRegion source,
                                  FindRegion target);

/// Cuts a plan into slices. Items that follow each other on both sides become one segment.
///
/// Thread-compatible.
class Slicer {
 public:
  /// Slices have `slice_size` bytes, the last one fewer; and fewer where items are so small that
  /// there would be more than 4,096 segments.
  Slicer(CopyPlan plan, ByteCount slice_size);

  bool has_more() const { return part_ < plan_.parts.size(); }
  /// The next slice in place of what `segments` held; empty only when there is none.
  void Next(std::vector<Segment>& segments);

 private:
  void Advance(int64_t bytes);

  CopyPlan plan_;
  const int64_t slice_size_;
  size_t part_ = 0;
  size_t entry_ = 0;
  size_t run_ = 0;
  int64_t offset_ = 0;  // bytes of the run that are done
};

}  // namespace pageferry::transport
