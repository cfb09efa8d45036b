#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/ids.h"
#include "libs/transport/shared_mapping.h"
#include "libs/transport/slicer.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

/// The regions of this process that a way may touch, and how many transfers do so right now.
///
/// Thread-safe. Borrows the memory.
class OwnRegions {
 public:
  struct Region {
    RegionBytes bytes;
    SealTable* seals = nullptr;
    /// Null where the memory is not shared and cannot be damaged.
    const SharedMapping::Slot* slot = nullptr;
    /// Transfers that may touch it. Grows only with the table's mutex held.
    std::atomic<int64_t> uses{0};

    bool damaged() const { return slot != nullptr && SharedMapping::Damaged(*slot); }
  };

  /// Keeps regions in use as long as it lives. Movable.
  class Uses {
   public:
    Uses() = default;
    Uses(Uses&& other) noexcept = default;
    Uses& operator=(Uses&& other) noexcept;
    ~Uses() { Clear(); }

    /// The region, in use from now on; null when it is unknown. Asked again, it is found here.
    const Region* Take(OwnRegions& regions, RegionId id);
    void Clear();
    bool AnyDamaged() const;

   private:
    absl::flat_hash_map<RegionId, std::shared_ptr<Region>> taken_;
  };

  /// kInvalidArgument, BAD_HANDLE: no memory, or the id is taken.
  absl::Status Add(const OwnRegion& region);
  /// kFailedPrecondition, IN_USE. Unknown ids are fine.
  absl::Status Remove(RegionId id);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<RegionId, std::shared_ptr<Region>> regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pageferry::transport
