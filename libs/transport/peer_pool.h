#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "libs/common/ids.h"
#include "libs/transport/pool_layout.h"
#include "libs/transport/shared_mapping.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

/// Another agent's pool, mapped read-only; its data is a second mapping where the engine owns it.
/// It may lie, change and shrink: nothing in it is trusted but for the comparison with what was
/// offered.
///
/// Thread-safe. Owns the mappings.
class PeerPool {
 public:
  /// Maps what `region` tells, from the folder `dir`.
  /// kFailedPrecondition, NO_TRANSPORT, "local" in the metadata saying why: no such file, too
  /// short, not a pool, another layout, or other memory than the one told (nonce, device, inode).
  static absl::StatusOr<std::unique_ptr<PeerPool>> Open(const std::string& dir,
                                                        const RemoteRegion& region);

  /// The region's bytes.
  const std::byte* data() const {
    return data_.data() != nullptr ? data_.data() : mapping_.data() + kPoolDataOffset;
  }
  ByteCount size() const { return size_; }

  /// True when the seal is whole: all bytes read before this call were as they were offered. The
  /// index must be within the table.
  bool SealIsWhole(int32_t index, uint64_t value) const;

  /// True when a file was cut short: bytes read since may be zeros.
  bool damaged() const { return mapping_.damaged() || data_.damaged(); }

 private:
  PeerPool(SharedMapping mapping, SharedMapping data, ByteCount size)
      : mapping_(std::move(mapping)), data_(std::move(data)), size_(size) {}

  const PoolHeader& header() const { return *reinterpret_cast<const PoolHeader*>(mapping_.data()); }

  const SharedMapping mapping_;
  const SharedMapping data_;  // none where the data follows the seals
  const ByteCount size_;
};

}  // namespace pageferry::transport
