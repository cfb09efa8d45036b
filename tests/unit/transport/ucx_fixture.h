#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "libs/transport/shm_pool.h"
#include "libs/transport/ucx_transport.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {

/// Counts of messages that changed nothing.
class Refusals {
 public:
  std::function<void(absl::string_view)> Counter() {
    return [this](absl::string_view what) {
      const absl::MutexLock lock(&mutex_);
      ++counts_[std::string(what)];
    };
  }
  int64_t Of(const std::string& what) {
    const absl::MutexLock lock(&mutex_);
    return counts_[what];
  }
  /// Blocks until there are `count`; a test that waits in vain runs into its timeout.
  void Await(const std::string& what, int64_t count) {
    const auto there = [&] { return counts_[what] >= count; };
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&there));
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

/// A source with a pool and a target in the heap, with a connection over loopback between them.
class UcxPair {
 public:
  explicit UcxPair(int64_t size, UcxTransportOptions options = {}) : target(size) {
    auto made = ShmPool::CreateOrAdopt(PoolOptions(folder, size));
    EXPECT_THAT(made, IsOk());
    pool = *std::move(made);
    UcxTransportOptions of_source = options;
    of_source.refused = source_refused.Counter();
    source = *UcxTransport::Start(of_source);
    options.refused = target_refused.Counter();
    transport = *UcxTransport::Start(std::move(options));
    EXPECT_THAT(source->MapRegion({.id = kSourceRegion,
                                   .data = pool->data(),
                                   .size = pool->size(),
                                   .seals = &pool->seals()}),
                IsOk());
    EXPECT_THAT(transport->MapRegion({.id = kTargetRegion,
                                      .data = target.data(),
                                      .size = ByteCount(static_cast<int64_t>(target.size()))}),
                IsOk());
    Open();
  }
  ~UcxPair() {
    peer.reset();
    passive.reset();
  }

  void Open() {
    passive = *source->Accept({.name = "decode-0", .address = transport->address()});
    auto connected = transport->Connect(Spec());
    EXPECT_THAT(connected, IsOk());
    if (connected.ok()) peer = *std::move(connected);
  }
  PeerSpec Spec() const {
    return {.name = "prefill-0",
            .address = passive->address(),
            .regions = {{.id = kSourceRegion, .size = pool->size()}}};
  }

  Batch MakeBatch(std::vector<EntryPair> entries, std::vector<RunPair> runs, const Seal& seal,
                  uint64_t flow = 1) const {
    Batch batch;
    batch.flow = flow;
    batch.steps.push_back(
        {std::make_shared<const std::vector<EntryPair>>(std::move(entries)), std::move(runs)});
    batch.seal = {kSourceRegion, seal.index, seal.value};
    return batch;
  }
  /// All of the pool to the target, byte by byte.
  Batch WholeBatch(const Seal& seal, uint64_t flow = 1) const {
    return MakeBatch({Entry(0, 0, 1)}, {{0, 0, static_cast<int64_t>(target.size())}}, seal, flow);
  }
  Seal MakeSeal() const { return *pool->seals().Make(); }

  absl::Status WriteAndWait(Batch batch) const {
    WriteResult result;
    peer->Write(std::move(batch), result.Callback());
    return result.Wait();
  }

  Refusals source_refused;
  Refusals target_refused;
  ShmFolder folder;
  std::unique_ptr<ShmPool> pool;
  std::vector<std::byte> target;
  std::unique_ptr<UcxTransport> source;
  std::unique_ptr<UcxTransport> transport;
  std::unique_ptr<PassivePeer> passive;
  std::unique_ptr<TransportPeer> peer;
};

/// Keeps a transport's thread from doing anything, as a stopped process would.
class Stopped {
 public:
  explicit Stopped(UcxTransport& transport) {
    transport.worker().Post([state = state_] {
      state->stopped.Notify();
      state->go_on.WaitForNotification();
    });
    state_->stopped.WaitForNotification();
  }
  ~Stopped() { state_->go_on.Notify(); }

 private:
  struct State {
    absl::Notification stopped;
    absl::Notification go_on;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace pageferry::transport
