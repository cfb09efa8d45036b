#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/ids.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

class FakeTransport;

/// Lets fake transports find each other's memory by address.
///
/// Thread-safe. Outlives its transports.
class FakeNetwork {
 public:
  FakeNetwork() = default;
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

 private:
  friend class FakeTransport;

  absl::Mutex mutex_;
  std::map<std::string, FakeTransport*> transports_ ABSL_GUARDED_BY(mutex_);
};

/// A way whose writes end when, how and in the order that the test says.
///
/// Memory is real: bytes go between the own regions of two transports of one network. Nothing
/// happens by itself: a write waits until the test ends it, and its callback runs inside that call.
/// As with the real ways, ranges are checked before a byte moves, batches of one flow go in order,
/// a broken seal is kAborted where the target drives, and a cancelled write is kCancelled.
///
/// Thread-safe; callbacks run without a lock and may begin new writes.
class FakeTransport final : public Transport {
 public:
  struct Options {
    TransportKind kind = TransportKind::kLocal;
    Driver driver = Driver::kTarget;
    std::string address;
  };
  struct Pending {
    int64_t id = 0;
    std::string peer;
    uint64_t flow = 0;
    int32_t priority = 0;
    ByteCount bytes;
    SealRef seal;
    bool cancelled = false;
  };

  FakeTransport(FakeNetwork& network, Options options);
  FakeTransport(const FakeTransport&) = delete;
  FakeTransport& operator=(const FakeTransport&) = delete;
  ~FakeTransport() override;

  TransportKind kind() const override { return options_.kind; }
  Driver driver() const override { return options_.driver; }
  std::string address() const override { return options_.address; }
  absl::StatusOr<RemoteRegion> MapRegion(const OwnRegion& region) override;
  absl::Status UnmapRegion(RegionId id) override;
  /// NO_TRANSPORT where the address is not in the network, or the peer was killed.
  absl::StatusOr<std::unique_ptr<TransportPeer>> Connect(const PeerSpec& spec) override;

  /// Writes that have not ended, oldest first.
  std::vector<Pending> pending() const;

  /// Copies and ends a write as the real thing would. False when there is no such write, or an
  /// earlier one of its flow has not ended.
  bool Complete(int64_t id);
  /// The same for the oldest; false when there is none.
  bool CompleteNext();
  /// Until none is left, also those that callbacks begin. Returns how many.
  size_t CompleteAll();
  /// The bytes land now; the write ends with a later `Complete` or `End`. False as `Complete`.
  bool CopyOnly(int64_t id);
  /// Ends a write with `status` and moves nothing. False as `Complete`.
  bool End(int64_t id, absl::Status status);

  /// The `nth` write from now on (1 is the next) ends with `status` when it is completed.
  void FailWrite(int64_t nth, absl::Status status);
  /// All writes to the peer of this PeerSpec::name end with kUnavailable, TRANSPORT: those that
  /// wait at once, later ones when they are completed.
  void KillPeer(const std::string& name);
  /// The seals are whole but for those broken here: in the transport that has the source's memory.
  void BreakSeal(const SealRef& seal);

 private:
  class Peer;
  struct Write {
    Pending info;
    const Peer* peer = nullptr;
    std::string address;
    Batch batch;
    WriteDone done;
    absl::Status status;
  };
  using Writes = std::map<int64_t, Write>;

  void Push(const Peer& peer, const PeerSpec& spec, Batch batch, WriteDone done);
  void PushFlush(const Peer& peer, WriteDone done);
  void RemovePeer(const Peer& peer);
  bool IsNext(Writes::const_iterator write) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunDue();
  absl::Status Move(const Batch& batch, const std::string& address, bool copy);
  OwnRegion FindOwn(RegionId id) const;
  bool SealIsBroken(const SealRef& seal) const;
  FakeTransport* FindOther(const std::string& address) const;

  FakeNetwork& network_;
  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<RegionId, OwnRegion> regions_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<RegionId, uint64_t>> broken_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> killed_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  Writes writes_ ABSL_GUARDED_BY(mutex_);
  // (peer, last write to wait for).
  std::vector<std::pair<std::pair<const Peer*, int64_t>, WriteDone>> flushes_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace pageferry::transport
