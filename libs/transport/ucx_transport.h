#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "libs/transport/own_regions.h"
#include "libs/transport/pull_wire.h"
#include "libs/transport/transport.h"
#include "libs/transport/ucx_worker.h"

namespace pageferry::transport {

struct UcxTransportOptions {
  UcxWorkerOptions worker;
  /// Bytes that are asked for at once, of each peer, at most wire::kMaxOutstanding.
  ByteCount window = ByteCount(16 << 20);
  /// Messages of 256 KiB that wait for the network, for each peer.
  int64_t max_in_flight = 16;
  /// For a peer to answer the first message.
  absl::Duration connect_timeout = absl::Seconds(2);
  /// A message changed nothing, for counting: "data", "done", "read", "hail" (unknown or out of
  /// range) or "malformed". On the worker's thread.
  std::function<void(absl::string_view what)> refused;
};

/// The way over tcp: the target asks for the bytes by UCX active messages, checks what comes, and
/// places it. Nobody but the target's own thread writes its memory; see pull_target.h.
///
/// Regions can be read by peers that were accepted, and only under a whole seal: those without
/// seals are targets only.
///
/// Thread-safe. Owns the worker; borrows own regions. Outlives its peers of both kinds.
class UcxTransport final : public Transport {
 public:
  /// kFailedPrecondition, NO_TRANSPORT: UCX refused.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Start(UcxTransportOptions options);
  ~UcxTransport() override;

  TransportKind kind() const override { return TransportKind::kTcp; }
  Driver driver() const override { return Driver::kTarget; }
  std::string address() const override;
  absl::StatusOr<RemoteRegion> MapRegion(const OwnRegion& region) override;
  absl::Status UnmapRegion(RegionId id) override;

  /// Blocks until the other side has answered.
  absl::StatusOr<std::unique_ptr<TransportPeer>> Connect(const PeerSpec& spec) override;
  void ConnectLater(const PeerSpec& spec, ConnectDone done) override;
  absl::StatusOr<std::unique_ptr<PassivePeer>> Accept(const PeerSpec& spec) override;

  /// For tests, which post to it.
  UcxWorker& worker() { return *worker_; }

 private:
  struct Shared;
  class Peer;
  class Passive;

  explicit UcxTransport(UcxTransportOptions options);
  absl::StatusOr<wire::Address> CheckAddress(absl::string_view bytes) const;

  const UcxTransportOptions options_;
  OwnRegions regions_;
  std::unique_ptr<UcxWorker> worker_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace pageferry::transport
