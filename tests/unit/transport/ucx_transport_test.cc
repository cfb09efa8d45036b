#include "libs/transport/ucx_transport.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/unit/transport/ucx_fixture.h"

namespace pageferry::transport {
namespace {

void Randomise(std::byte* data, int64_t size, std::mt19937_64& random) {
  for (int64_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = random();
    std::memcpy(data + i, &word, sizeof(word));
  }
}

// Each page of the target at most once; runs of one to a few pages.
std::vector<RunPair> RandomRuns(std::mt19937_64& random, int64_t pages) {
  std::vector<RunPair> runs;
  int64_t next = 0;
  while (next < pages) {
    next += static_cast<int64_t>(random() % 3);
    const auto count = static_cast<int64_t>(random() % 4);
    if (count == 0 || next + count > pages) break;
    runs.push_back({static_cast<int64_t>(random()) % (pages - count + 1), next, count});
    if (runs.back().source_first < 0) runs.back().source_first = 0;
    next += count;
  }
  std::ranges::shuffle(runs, random);
  return runs;
}

TEST(UcxTransportTest, RandomRoomsAgainstAnOracleWithCanaries) {
  std::mt19937_64 random(2027);
  constexpr int64_t kBytes = 6 << 20;
  UcxPair pair(kBytes, {.window = ByteCount(2 << 20), .max_in_flight = 3});
  Randomise(pair.pool->data(), kBytes, random);
  for (int round = 0; round < 60; ++round) {
    Randomise(pair.target.data(), kBytes, random);
    std::vector<std::byte> expected = pair.target;
    constexpr int64_t kFlows = 4;
    std::vector<std::unique_ptr<WriteResult>> results;
    for (int64_t flow = 0; flow < kFlows; ++flow) {
      const int64_t quarter = kBytes / kFlows;
      const int64_t item = 1 + static_cast<int64_t>(random() % 70'001);
      const int64_t pages = quarter / item / 2;
      const std::vector<EntryPair> entries = {
          Entry(flow * 1000, flow * quarter, item),
          Entry(kBytes / 2, flow * quarter + pages * item, item)};
      const std::vector<RunPair> runs = RandomRuns(random, pages);
      for (const EntryPair& entry : entries) {
        for (const RunPair& run : runs) {
          std::memcpy(expected.data() + entry.target_offset.value() + run.target_first * item,
                      pair.pool->data() + entry.source_offset.value() + run.source_first * item,
                      static_cast<size_t>(run.count * item));
        }
      }
      Batch batch = pair.MakeBatch(entries, runs, pair.MakeSeal(), static_cast<uint64_t>(flow));
      batch.priority = static_cast<int32_t>(flow % 2);
      results.push_back(std::make_unique<WriteResult>());
      pair.peer->Write(std::move(batch), results.back()->Callback());
    }
    for (const auto& result : results) EXPECT_THAT(result->Wait(), IsOk());
    ASSERT_TRUE(pair.target == expected) << "round " << round;
  }
  EXPECT_EQ(pair.target_refused.Of("data"), 0);
  EXPECT_EQ(pair.source_refused.Of("read"), 0);
}

TEST(UcxTransportTest, AnEmptyBatchStillLooksAtTheSeal) {
  UcxPair pair(4096);
  const Seal seal = pair.MakeSeal();
  EXPECT_THAT(pair.WriteAndWait(pair.MakeBatch({}, {}, seal)), IsOk());
  pair.pool->seals().Break(seal);
  EXPECT_THAT(pair.WriteAndWait(pair.MakeBatch({}, {}, seal)),
              StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
}

TEST(UcxTransportTest, I2_ABrokenSealNeverSucceedsAndSendsNothing) {
  UcxPair pair(1 << 20);
  std::ranges::fill(pair.target, std::byte{7});
  const Seal seal = pair.MakeSeal();
  pair.pool->seals().Break(seal);
  EXPECT_THAT(pair.WriteAndWait(pair.WholeBatch(seal)),
              StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
  EXPECT_EQ(std::ranges::count(pair.target, std::byte{7}), 1 << 20);
}

TEST(UcxTransportTest, I2_APageThatIsReusedBehindABreakNeverSucceeds) {
  constexpr int64_t kBytes = 8 << 20;
  UcxPair pair(kBytes);
  std::mt19937_64 random(5);
  int succeeded = 0;
  for (int round = 0; round < 40; ++round) {
    std::memset(pair.pool->data(), 1, kBytes);
    const Seal seal = pair.MakeSeal();
    WriteResult result;
    pair.peer->Write(pair.WholeBatch(seal), result.Callback());
    // Somewhere between "before" and "after": the order of break and reuse is what counts.
    volatile uint64_t spin = random() % 400'000;
    while (spin > 0) spin = spin - 1;
    pair.pool->seals().Break(seal);
    std::memset(pair.pool->data(), 2, kBytes);
    if (!result.Wait().ok()) continue;
    ++succeeded;
    EXPECT_EQ(std::ranges::count(pair.target, std::byte{1}), kBytes);
  }
  EXPECT_LE(succeeded, 40);
}

TEST(UcxTransportTest, I1_WhatWasCancelledIsNotWrittenThoughItArrives) {
  constexpr int64_t kBytes = 1 << 20;
  UcxPair pair(kBytes);
  std::memset(pair.pool->data(), 3, kBytes);
  std::ranges::fill(pair.target, std::byte{9});
  Batch batch = pair.WholeBatch(pair.MakeSeal());
  batch.cancel = std::make_shared<CancelToken>();
  WriteResult result;
  {
    // The source has the request but does nothing.
    Stopped source(*pair.source);
    pair.peer->Write(batch, result.Callback());
    pair.transport->worker().Run([] {});  // it is asked for now
    batch.cancel->Cancel();
    EXPECT_EQ(result.Wait().code(), absl::StatusCode::kCancelled);
  }
  // All four messages come and are dropped; the answer behind them as well.
  pair.target_refused.Await("done", 1);
  EXPECT_EQ(pair.target_refused.Of("data"), 4);
  EXPECT_EQ(std::ranges::count(pair.target, std::byte{9}), kBytes);
}

TEST(UcxTransportTest, I1_AnEndedPeerWritesNothingMore) {
  constexpr int64_t kBytes = 32 << 20;
  UcxPair pair(kBytes);
  std::memset(pair.pool->data(), 3, kBytes);
  std::vector<std::unique_ptr<WriteResult>> results;
  const Seal seal = pair.MakeSeal();
  for (uint64_t flow = 0; flow < 4; ++flow) {
    results.push_back(std::make_unique<WriteResult>());
    pair.peer->Write(pair.WholeBatch(seal, flow), results.back()->Callback());
  }
  pair.peer.reset();
  for (const auto& result : results) {
    ASSERT_TRUE(result->done());
    EXPECT_EQ(result->calls(), 1);
  }
  EXPECT_THAT(pair.transport->UnmapRegion(kTargetRegion), IsOk());
  const std::vector<std::byte> after = pair.target;
  // A round trip with the source: whatever was on its way has come.
  pair.passive.reset();
  EXPECT_THAT(pair.source->UnmapRegion(kSourceRegion), IsOk());
  pair.transport->worker().Run([] {});
  EXPECT_TRUE(pair.target == after);
}

TEST(UcxTransportTest, ASourceThatDiesFailsTheWrites) {
  constexpr int64_t kBytes = 32 << 20;
  UcxPair pair(kBytes);
  WriteResult result;
  WriteResult flushed;
  pair.peer->Write(pair.WholeBatch(pair.MakeSeal()), result.Callback());
  pair.peer->Flush(flushed.Callback());
  pair.passive.reset();
  EXPECT_THAT(pair.source->UnmapRegion(kSourceRegion), IsOk());
  pair.source.reset();
  // 32 MiB are twice the window: it cannot have had all.
  EXPECT_THAT(result.Wait(), StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
  EXPECT_THAT(flushed.Wait(), IsOk());
  // From now on every write ends at once.
  EXPECT_THAT(pair.WriteAndWait(pair.WholeBatch(pair.MakeSeal())),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
}

int64_t OpenFiles() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(UcxTransportTest, APeerThatComesBackGetsANewConnectionAndLeavesNoDescriptor) {
  constexpr int64_t kBytes = 1 << 20;
  UcxPair pair(kBytes);
  int64_t open_files = 0;
  for (int round = 0; round < 40; ++round) {
    if (round == 4) open_files = OpenFiles();
    std::memset(pair.pool->data(), round, kBytes);
    ASSERT_THAT(pair.WriteAndWait(pair.WholeBatch(pair.MakeSeal())), IsOk());
    ASSERT_EQ(std::ranges::count(pair.target, static_cast<std::byte>(round)), kBytes);
    if (round % 2 == 0) {
      pair.peer.reset();
      pair.passive.reset();
    } else {
      pair.passive.reset();
      pair.peer.reset();
    }
    pair.Open();
    ASSERT_NE(pair.peer, nullptr);
  }
  // Those of the last connections may be on their way out.
  EXPECT_LE(OpenFiles(), open_files + 4);
}

TEST(UcxTransportTest, RangesAreCheckedBeforeAnythingIsSent) {
  UcxPair pair(1 << 20);
  const Seal seal = pair.MakeSeal();
  const auto bad = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPages);
  EXPECT_THAT(pair.WriteAndWait(pair.MakeBatch({Entry(0, 0, 4096)}, {{256, 0, 1}}, seal)), bad);
  EXPECT_THAT(pair.WriteAndWait(pair.MakeBatch({Entry(0, 0, 4096)}, {{0, 256, 1}}, seal)), bad);
  EntryPair unknown = Entry(0, 0, 4096);
  unknown.source_region = RegionId(99);
  EXPECT_THAT(pair.WriteAndWait(pair.MakeBatch({unknown}, {{0, 0, 1}}, seal)), bad);
}

TEST(UcxTransportTest, ARegionInUseIsNotForgotten) {
  UcxPair pair(1 << 20);
  WriteResult result;
  {
    Stopped source(*pair.source);
    pair.peer->Write(pair.WholeBatch(pair.MakeSeal()), result.Callback());
    EXPECT_THAT(pair.transport->UnmapRegion(kTargetRegion),
                StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));
  }
  EXPECT_THAT(result.Wait(), IsOk());
  EXPECT_THAT(pair.transport->UnmapRegion(kTargetRegion), IsOk());
  EXPECT_THAT(pair.transport->UnmapRegion(kTargetRegion), IsOk());
}

TEST(UcxTransportTest, ADeadSourceIsFoundWhenItIsDialled) {
  UcxPair pair(4096, {.connect_timeout = absl::Milliseconds(200)});
  PeerSpec spec = pair.Spec();
  pair.passive.reset();  // its secret is void now
  EXPECT_THAT(pair.transport->Connect(spec),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport));
  pair.source_refused.Await("hail", 1);
  pair.peer.reset();
  pair.source.reset();  // nobody listens any more
  EXPECT_THAT(pair.transport->Connect(spec),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport));
  spec.address = "nonsense";
  EXPECT_THAT(pair.transport->Connect(spec),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
}

TEST(UcxTransportTest, TheExpectedReleaseRuns) {
  const char* const expected = std::getenv("PAGEFERRY_EXPECT_UCX");
  EXPECT_THAT(UcxVersion(), testing::StartsWith(expected == nullptr ? "1." : expected));
}

TEST(UcxTransportTest, AnotherReleaseOfUcxIsTurnedDown) {
  UcxPair pair(4096);
  wire::Address other = *wire::DecodeAddress(pair.passive->address());
  ++other.ucx_minor;
  PeerSpec spec = pair.Spec();
  spec.address = wire::EncodeAddress(other);
  const auto connected = pair.transport->Connect(spec);
  EXPECT_THAT(connected, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport));
  EXPECT_THAT(connected.status().message(), testing::HasSubstr("there"));
  EXPECT_THAT(pair.source->Accept({.name = "x", .address = wire::EncodeAddress(other)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport));
}

TEST(UcxTransportTest, AnInterfaceThatIsNotThereIsAnErrorAtStart) {
  const auto started = UcxTransport::Start({.worker = {.device = "nosuch0"}});
  EXPECT_THAT(started, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport));
}

}  // namespace
}  // namespace pageferry::transport
