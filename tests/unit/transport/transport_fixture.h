#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "libs/transport/local_transport.h"
#include "libs/transport/shm_pool.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::transport {

/// A folder of its own in the host's shared memory, removed at the end.
class ShmFolder {
 public:
  ShmFolder() {
    std::string path = "/dev/shm/pageferry-test-XXXXXX";
    if (mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ShmFolder(const ShmFolder&) = delete;
  ShmFolder& operator=(const ShmFolder&) = delete;
  ~ShmFolder() {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

inline ShmPoolOptions PoolOptions(const ShmFolder& folder, int64_t size,
                                  const std::string& name = "kv",
                                  const std::string& agent = "prefill-0") {
  ShmPoolOptions options;
  options.agent_id = agent;
  options.name = name;
  options.size = ByteCount(size);
  options.dir = folder.path();
  return options;
}

/// A write's end, for a test to wait for.
class WriteResult {
 public:
  WriteDone Callback() {
    return [this](absl::Status status) {
      status_ = std::move(status);
      ++calls_;
      done_.Notify();
    };
  }
  const absl::Status& Wait() {
    done_.WaitForNotification();
    return status_;
  }
  bool done() const { return done_.HasBeenNotified(); }
  int calls() const { return calls_; }

 private:
  absl::Status status_;
  int calls_ = 0;
  absl::Notification done_;
};

inline constexpr RegionId kSourceRegion{11};
inline constexpr RegionId kTargetRegion{22};

/// One source pool and one target in the heap (where a sanitizer sees what lies beside it), with a
/// local transport between them.
class LocalPair {
 public:
  explicit LocalPair(int64_t size, LocalTransportOptions options = {}) : target(size) {
    options.shm_dir = folder.path();
    auto made = ShmPool::CreateOrAdopt(PoolOptions(folder, size));
    EXPECT_THAT(made, IsOk());
    source = *std::move(made);
    transport = std::make_unique<LocalTransport>(std::move(options));
    EXPECT_THAT(transport->MapRegion({.id = kTargetRegion,
                                      .data = target.data(),
                                      .size = ByteCount(static_cast<int64_t>(target.size()))}),
                IsOk());
    auto connected = transport->Connect(Spec());
    EXPECT_THAT(connected, IsOk());
    peer = *std::move(connected);
  }

  PeerSpec Spec() const {
    return {.name = "prefill-0",
            .regions = {{.id = kSourceRegion, .size = source->size(), .local = source->local()}}};
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

  Seal MakeSeal() const {
    auto seal = source->seals().Make();
    EXPECT_THAT(seal, IsOk());
    return *seal;
  }

  ShmFolder folder;
  std::unique_ptr<ShmPool> source;
  std::vector<std::byte> target;
  std::unique_ptr<LocalTransport> transport;
  std::unique_ptr<TransportPeer> peer;
};

/// An entry from the source's offset to the target's.
inline EntryPair Entry(int64_t source_offset, int64_t target_offset, int64_t item_size) {
  return {kSourceRegion, ByteCount(source_offset), kTargetRegion, ByteCount(target_offset),
          ByteCount(item_size)};
}

}  // namespace pageferry::transport
