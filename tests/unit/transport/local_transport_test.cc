#include "libs/transport/local_transport.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

absl::Status WriteAndWait(LocalPair& pair, Batch batch) {
  WriteResult result;
  pair.peer->Write(std::move(batch), result.Callback());
  return result.Wait();
}

// Pages of a target in random order: each at most once, as a grant has them.
std::vector<RunPair> RandomRuns(std::mt19937_64& random, int64_t pages) {
  std::vector<int64_t> order(static_cast<size_t>(pages));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::shuffle(order.begin(), order.end(), random);
  order.resize(random() % order.size());
  std::vector<RunPair> runs;
  std::sort(order.begin(), order.begin() + static_cast<int64_t>(order.size() / 2));
  for (const int64_t page : order) {
    if (!runs.empty() && runs.back().target_first + runs.back().count == page &&
        runs.back().source_first + runs.back().count < pages) {
      ++runs.back().count;
    } else {
      runs.push_back({static_cast<int64_t>(random() % pages), page, 1});
    }
  }
  return runs;
}

TEST(LocalTransportTest, RandomRoomsAgainstAnOracleWithCanaries) {
  constexpr uint64_t kSeed = 99;
  std::mt19937_64 random(kSeed);
  constexpr int64_t kBytes = 3 << 20;
  LocalPair pair(kBytes, {.copy_threads = 3, .slice_size = ByteCount(100'000)});
  for (int64_t i = 0; i < kBytes; ++i) pair.source->data()[i] = static_cast<std::byte>(random());
  for (int round = 0; round < 60; ++round) {
    for (std::byte& byte : pair.target) byte = static_cast<std::byte>(random());
    std::vector<std::byte> expected = pair.target;
    constexpr int64_t kFlows = 4;
    std::vector<std::unique_ptr<WriteResult>> results;
    for (int64_t flow = 0; flow < kFlows; ++flow) {
      // Each flow has a quarter of the target, with an odd number of items of an odd size.
      const int64_t share = kBytes / kFlows;
      const int64_t layers = 1 + static_cast<int64_t>(random() % 4);
      const int64_t item = 1 + static_cast<int64_t>(random() % 9000);
      const int64_t pages = share / layers / item;
      if (pages < 2) continue;
      std::vector<EntryPair> entries;
      for (int64_t layer = 0; layer < layers; ++layer) {
        const int64_t room = kBytes - pages * item;
        entries.push_back(Entry(static_cast<int64_t>(random() % room),
                                flow * share + layer * pages * item, item));
      }
      const std::vector<RunPair> runs = RandomRuns(random, pages);
      for (const EntryPair& entry : entries) {
        for (const RunPair& run : runs) {
          for (int64_t i = 0; i < run.count; ++i) {
            std::memcpy(
                expected.data() + entry.target_offset.value() + (run.target_first + i) * item,
                pair.source->data() + entry.source_offset.value() + (run.source_first + i) * item,
                static_cast<size_t>(item));
          }
        }
      }
      results.push_back(std::make_unique<WriteResult>());
      pair.peer->Write(pair.MakeBatch(entries, runs, pair.MakeSeal(), static_cast<uint64_t>(flow)),
                       results.back()->Callback());
    }
    for (const auto& result : results) ASSERT_THAT(result->Wait(), IsOk());
    ASSERT_TRUE(pair.target == expected) << "seed " << kSeed << " round " << round;
  }
}

TEST(LocalTransportTest, BadRangesWriteNothing) {
  LocalPair pair(1 << 20);
  const Seal seal = pair.MakeSeal();
  const std::vector<std::byte> before = pair.target;
  std::memset(pair.source->data(), 1, 1 << 20);
  const std::vector<EntryPair> good = {Entry(0, 0, 4096)};
  const std::vector<Batch> bad = {
      pair.MakeBatch({Entry(0, 0, 4096), Entry(1, 0, 4096)}, {{0, 0, 256}}, seal),
      pair.MakeBatch({Entry(0, 0, 4096), Entry(0, 1, 4096)}, {{0, 0, 256}}, seal),
      pair.MakeBatch(good, {{0, 0, 1}, {256, 1, 1}}, seal),
      pair.MakeBatch(good, {{0, 0, 1}, {1, 256, 1}}, seal),
      pair.MakeBatch(good, {{0, 0, 1}, {0, kMax, kMax}}, seal),
      pair.MakeBatch({Entry(0, 0, 4096), Entry(0, 0, kMax)}, {{0, 0, 1}}, seal),
      pair.MakeBatch(good, {{0, 0, 1}, {0, 0, -1}}, seal),
      pair.MakeBatch(good, {{0, 0, 1}}, {-1, seal.value}),
      pair.MakeBatch(good, {{0, 0, 1}}, {kSealCount, seal.value}),
  };
  for (const Batch& batch : bad) {
    EXPECT_THAT(WriteAndWait(pair, batch),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPages));
  }
  Batch unknown = pair.MakeBatch(good, {{0, 0, 1}}, seal);
  unknown.seal.region = RegionId(1234);
  EXPECT_THAT(WriteAndWait(pair, unknown), HasReason(Reason::kBadPages));
  EXPECT_TRUE(pair.target == before);
  EXPECT_THAT(WriteAndWait(pair, pair.MakeBatch(good, {{0, 0, 1}}, seal)), IsOk());
  EXPECT_FALSE(pair.target == before);
}

TEST(LocalTransportTest, EmptyBatchStillLooksAtTheSeal) {
  LocalPair pair(1 << 20);
  const Seal seal = pair.MakeSeal();
  EXPECT_THAT(WriteAndWait(pair, pair.MakeBatch({}, {}, seal)), IsOk());
  pair.source->seals().Break(seal);
  EXPECT_THAT(WriteAndWait(pair, pair.MakeBatch({}, {}, seal)),
              StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
}

TEST(LocalTransportTest, NamesItself) {
  const LocalTransport transport;
  EXPECT_EQ(transport.kind(), TransportKind::kLocal);
  EXPECT_EQ(transport.driver(), Driver::kTarget);
  EXPECT_EQ(transport.address(), "");
}

TEST(LocalTransportTest, RegionsAreToldAndForgotten) {
  LocalPair pair(1 << 20);
  EXPECT_THAT(pair.transport->MapRegion({.id = RegionId(1)}), HasReason(Reason::kBadHandle));
  EXPECT_THAT(pair.transport->MapRegion(
                  {.id = kTargetRegion, .data = pair.target.data(), .size = ByteCount(1)}),
              HasReason(Reason::kBadHandle));
  const auto told = pair.transport->MapRegion({.id = RegionId(5),
                                               .data = pair.source->data(),
                                               .size = pair.source->size(),
                                               .local = pair.source->local()});
  ASSERT_THAT(told, IsOk());
  EXPECT_EQ(told->size, pair.source->size());
  EXPECT_EQ(told->local, pair.source->local());
  EXPECT_THAT(pair.transport->UnmapRegion(RegionId(5)), IsOk());
  EXPECT_THAT(pair.transport->UnmapRegion(RegionId(5)), IsOk());
}

TEST(LocalTransportTest, RegionInUseStays) {
  absl::Notification begun;
  absl::Notification go_on;
  LocalPair pair(1 << 20, {.before_copy = [&](uint64_t, absl::Span<const Segment>) {
                   begun.Notify();
                   go_on.WaitForNotification();
                 }});
  absl::Status unmapped = absl::UnknownError("not run");
  absl::Notification done;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, 100)}, {{0, 0, 1}}, pair.MakeSeal()),
                   [&](const absl::Status& status) {
                     EXPECT_THAT(status, IsOk());
                     unmapped = pair.transport->UnmapRegion(kTargetRegion);
                     done.Notify();
                   });
  begun.WaitForNotification();
  EXPECT_THAT(pair.transport->UnmapRegion(kTargetRegion),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));
  go_on.Notify();
  done.WaitForNotification();
  EXPECT_THAT(unmapped, IsOk());
  EXPECT_THAT(WriteAndWait(pair, pair.MakeBatch({Entry(0, 0, 100)}, {{0, 0, 1}}, pair.MakeSeal())),
              HasReason(Reason::kBadPages));
}

TEST(LocalTransportTest, ConnectRefusesWhatItCannotTrust) {
  LocalPair pair(1 << 20);
  const auto expect_no = [&](const char* what, const std::function<void(RemoteRegion&)>& change) {
    PeerSpec spec = pair.Spec();
    change(spec.regions[0]);
    const auto peer = pair.transport->Connect(spec);
    EXPECT_THAT(peer, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport))
        << what;
    EXPECT_TRUE(MetadataOf(peer.status()).contains("local")) << what;
  };
  const std::string path = pair.folder.File("pageferry.prefill-0.kv");
  expect_no("no shared memory", [](RemoteRegion& region) { region.local.reset(); });
  expect_no("nonce", [](RemoteRegion& region) { ++region.local->nonce; });
  expect_no("region", [](RemoteRegion& region) { region.size += ByteCount(1); });
  expect_no("no bytes", [](RemoteRegion& region) { region.size = ByteCount(0); });
  expect_no("negative", [](RemoteRegion& region) { region.size = ByteCount(-5); });
  expect_no("huge", [](RemoteRegion& region) {
    region.size = ByteCount(kMax);
    region.local->mapping_size = ByteCount(kMax);
  });
  expect_no("offset", [](RemoteRegion& region) { region.local->data_offset = ByteCount(4096); });
  expect_no("longer than the file",
            [](RemoteRegion& region) { region.local->mapping_size += ByteCount(4096); });
  for (const char* name : {"", "x", "/", "/..", "/a/b", "/../etc/passwd", "/no-such-pool", "/\n",
                           "/pageferry.link", "/plain", "/pipe", "/folder"}) {
    ASSERT_EQ(unlink(pair.folder.File("pageferry.link").c_str()) * 0, 0);
    (void)!symlink(path.c_str(), pair.folder.File("pageferry.link").c_str());
    std::ofstream(pair.folder.File("plain")) << std::string(4 << 20, 'x');
    mkfifo(pair.folder.File("pipe").c_str(), 0600);
    mkdir(pair.folder.File("folder").c_str(), 0700);
    expect_no(name, [name](RemoteRegion& region) { region.local->shm_name = name; });
  }
  PeerSpec twice = pair.Spec();
  twice.regions.push_back(twice.regions[0]);
  EXPECT_THAT(pair.transport->Connect(twice), HasReason(Reason::kNoTransport));
  ASSERT_EQ(truncate(path.c_str(), kPoolDataOffset), 0);
  expect_no("cut short", [](RemoteRegion&) {});
}

TEST(LocalTransportTest, ConnectRefusesAnotherLayout) {
  LocalPair pair(1 << 20);
  auto* header = reinterpret_cast<PoolHeader*>(pair.source->data() - kPoolDataOffset);
  const PeerSpec spec = pair.Spec();
  header->layout_version = 2;
  EXPECT_THAT(pair.transport->Connect(spec), HasReason(Reason::kNoTransport));
  header->layout_version = kPoolLayoutVersion;
  header->data_size = 4096;
  EXPECT_THAT(pair.transport->Connect(spec), HasReason(Reason::kNoTransport));
  header->data_size = 1 << 20;
  header->seal_count = 1;
  EXPECT_THAT(pair.transport->Connect(spec), HasReason(Reason::kNoTransport));
  header->seal_count = kSealCount;
  header->magic = 0;
  EXPECT_THAT(pair.transport->Connect(spec), HasReason(Reason::kNoTransport));
  header->magic = kPoolMagic;
  EXPECT_THAT(pair.transport->Connect(spec), IsOk());
}

// By order of completion: the small room comes while the huge one is being copied.
TEST(LocalTransportTest, SmallRoomIsNotStuckBehindAHugeOne) {
  absl::Notification begun;
  absl::Notification go_on;
  int huge_slices = 0;
  int huge_slices_before_small = 0;
  LocalPair pair(4 << 20, {.copy_threads = 1,
                           .slice_size = ByteCount(4096),
                           .before_copy = [&](uint64_t flow, absl::Span<const Segment>) {
                             if (flow == 2) return;
                             if (huge_slices++ == 0) {
                               begun.Notify();
                               go_on.WaitForNotification();
                             }
                           }});
  WriteResult huge;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, 4096)}, {{0, 0, 1024}}, pair.MakeSeal(), 1),
                   huge.Callback());
  begun.WaitForNotification();
  absl::Notification small_done;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, 4096)}, {{0, 0, 3}}, pair.MakeSeal(), 2),
                   [&](const absl::Status& status) {
                     EXPECT_THAT(status, IsOk());
                     huge_slices_before_small = huge_slices;
                     small_done.Notify();
                   });
  go_on.Notify();
  small_done.WaitForNotification();
  EXPECT_THAT(huge.Wait(), IsOk());
  EXPECT_LE(huge_slices_before_small, 5);
  EXPECT_EQ(huge_slices, 1024);
}

TEST(LocalTransportTest, CancelStopsAtTheNextSlice) {
  auto cancel = std::make_shared<CancelToken>();
  int slices = 0;
  LocalPair pair(1 << 20, {.copy_threads = 1,
                           .slice_size = ByteCount(4096),
                           .before_copy = [&](uint64_t, absl::Span<const Segment>) {
                             if (++slices == 3) cancel->Cancel();
                           }});
  Batch batch = pair.MakeBatch({Entry(0, 0, 4096)}, {{0, 0, 256}}, pair.MakeSeal());
  batch.cancel = cancel;
  EXPECT_THAT(WriteAndWait(pair, batch), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(slices, 3);
  EXPECT_THAT(WriteAndWait(pair, batch), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(slices, 3);
}

TEST(LocalTransportTest, ClosingThePeerEndsItsWritesFirst) {
  absl::Notification begun;
  absl::Notification go_on;
  LocalPair pair(1 << 20,
                 {.copy_threads = 1, .before_copy = [&](uint64_t, absl::Span<const Segment>) {
                    if (begun.HasBeenNotified()) return;
                    begun.Notify();
                    go_on.WaitForNotification();
                  }});
  WriteResult first;
  std::vector<WriteResult> queued(10);
  WriteResult flushed;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, 4096)}, {{0, 0, 1}}, pair.MakeSeal()),
                   first.Callback());
  begun.WaitForNotification();
  for (size_t i = 0; i < queued.size(); ++i) {
    pair.peer->Write(pair.MakeBatch({Entry(0, 0, 4096)}, {{0, 0, 1}}, pair.MakeSeal(), i % 3),
                     queued[i].Callback());
  }
  pair.peer->Flush(flushed.Callback());
  EXPECT_FALSE(flushed.done());
  std::thread closer([&] { pair.peer.reset(); });
  go_on.Notify();
  closer.join();
  ASSERT_TRUE(first.done() && flushed.done());
  EXPECT_THAT(flushed.Wait(), IsOk());
  for (const WriteResult& result : queued) {
    ASSERT_TRUE(result.done());
    EXPECT_EQ(result.calls(), 1);
  }
}

TEST(LocalTransportTest, FlushWaitsForEarlierWritesOnly) {
  LocalPair pair(1 << 20);
  WriteResult idle;
  pair.peer->Flush(idle.Callback());
  EXPECT_THAT(idle.Wait(), IsOk());
  std::vector<WriteResult> writes(20);
  for (size_t i = 0; i < writes.size(); ++i) {
    pair.peer->Write(pair.MakeBatch({Entry(0, 0, 4096)}, {{0, 0, 200}}, pair.MakeSeal(), i),
                     writes[i].Callback());
  }
  WriteResult flushed;
  pair.peer->Flush(flushed.Callback());
  flushed.Wait();
  for (const WriteResult& write : writes) EXPECT_TRUE(write.done());
}

}  // namespace
}  // namespace pageferry::transport
