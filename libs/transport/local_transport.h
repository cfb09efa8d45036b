#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/common/ids.h"
#include "libs/transport/own_regions.h"
#include "libs/transport/page_copy.h"
#include "libs/transport/slice_queue.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

struct LocalTransportOptions {
  /// Threads that copy, at least 1; one comes near a socket's memory bandwidth on most hosts.
  int copy_threads = 2;
  /// Bytes that are copied before the next flow has its turn, the seal is checked and a
  /// cancellation is seen.
  ByteCount slice_size = ByteCount(512 << 10);
  /// Where shm_open() has its files.
  std::string shm_dir = "/dev/shm";

  /// For tests: run on the copying thread before a slice is copied, and between copy and check.
  std::function<void(uint64_t flow, absl::Span<const Segment> slice)> before_copy;
  std::function<void(uint64_t flow, absl::Span<const Segment> slice)> before_check;
};

/// The way between two agents of one host: the target maps the source's pools read-only and copies.
///
/// Own regions are targets (any memory) and sources (those with a LocalMapping, which a peer maps;
/// this process does nothing for them). Every slice is followed by a look at the batch's seal, so
/// OK means that all bytes are those that were offered. A source that cuts its file short makes the
/// write fail (kUnavailable, TRANSPORT) and harms nobody else, see shared_mapping.h.
///
/// Thread-safe. Owns the copying threads; borrows own regions. Outlives its peers.
class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(LocalTransportOptions options = {});
  ~LocalTransport() override;

  TransportKind kind() const override { return TransportKind::kLocal; }
  Driver driver() const override { return Driver::kTarget; }
  std::string address() const override { return {}; }

  /// kInvalidArgument, BAD_HANDLE: no memory, or the id is taken.
  absl::StatusOr<RemoteRegion> MapRegion(const OwnRegion& region) override;
  absl::Status UnmapRegion(RegionId id) override;
  /// Maps all regions of the peer. kFailedPrecondition, NO_TRANSPORT when one of them cannot be.
  absl::StatusOr<std::unique_ptr<TransportPeer>> Connect(const PeerSpec& spec) override;

 private:
  class Peer;
  class Job;

  const LocalTransportOptions options_;
  OwnRegions regions_;
  SliceQueue queue_;
};

}  // namespace pageferry::transport
