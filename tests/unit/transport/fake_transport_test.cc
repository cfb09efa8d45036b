#include "tests/fakes/fake_transport.h"

#include <memory>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::transport {
namespace {

constexpr RegionId kSource{1};
constexpr RegionId kTarget{2};

class FakeTransportTest : public testing::Test {
 protected:
  FakeTransportTest() {
    EXPECT_THAT(prefill_.MapRegion({kSource, source_.data(), ByteCount(100), {}}), IsOk());
    EXPECT_THAT(decode_.MapRegion({kTarget, target_.data(), ByteCount(100), {}}), IsOk());
    auto peer = decode_.Connect({.name = "prefill-0", .address = "prefill"});
    EXPECT_THAT(peer, IsOk());
    peer_ = *std::move(peer);
  }
  // Moves item `item` of 10 bytes; the result comes to results_[item].
  void Write(int64_t item, uint64_t flow = 1, std::shared_ptr<CancelToken> cancel = nullptr) {
    Batch batch;
    batch.flow = flow;
    batch.steps.push_back({std::make_shared<const std::vector<EntryPair>>(std::vector<EntryPair>{
                               {kSource, ByteCount(0), kTarget, ByteCount(0), ByteCount(10)}}),
                           {{item, item, 1}}});
    batch.seal = {kSource, 0, 77};
    batch.cancel = std::move(cancel);
    peer_->Write(std::move(batch), [this, item](absl::Status status) { results_[item] = status; });
  }
  std::vector<int64_t> PendingIds() const {
    std::vector<int64_t> ids;
    for (const auto& write : decode_.pending()) ids.push_back(write.id);
    return ids;
  }

  FakeNetwork network_;
  std::vector<std::byte> source_ = std::vector<std::byte>(100, std::byte{5});
  std::vector<std::byte> target_ = std::vector<std::byte>(100);
  FakeTransport prefill_{network_, {.address = "prefill"}};
  FakeTransport decode_{network_, {.address = "decode"}};
  std::unique_ptr<TransportPeer> peer_;
  std::map<int64_t, absl::Status> results_;
};

TEST_F(FakeTransportTest, NothingHappensByItself) {
  Write(3);
  ASSERT_THAT(decode_.pending(), testing::SizeIs(1));
  EXPECT_EQ(decode_.pending()[0].peer, "prefill-0");
  EXPECT_EQ(decode_.pending()[0].bytes, ByteCount(10));
  EXPECT_TRUE(results_.empty());
  EXPECT_TRUE(decode_.CompleteNext());
  EXPECT_THAT(results_[3], IsOk());
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(target_[i], i >= 30 && i < 40 ? std::byte{5} : std::byte{0});
  }
  EXPECT_FALSE(decode_.CompleteNext());
}

TEST_F(FakeTransportTest, FlowsMayOvertakeEachOtherAndBatchesOfOneMayNot) {
  Write(0, 1);
  Write(1, 1);
  Write(2, 2);
  const std::vector<int64_t> ids = PendingIds();
  EXPECT_FALSE(decode_.Complete(ids[1]));
  EXPECT_TRUE(decode_.Complete(ids[2]));
  EXPECT_TRUE(decode_.Complete(ids[0]));
  EXPECT_TRUE(decode_.Complete(ids[1]));
  EXPECT_FALSE(decode_.Complete(ids[1]));
}

TEST_F(FakeTransportTest, FailsTheNth) {
  decode_.FailWrite(2, absl::DataLossError("told to"));
  Write(0);
  Write(1);
  Write(2);
  EXPECT_EQ(decode_.CompleteAll(), 3U);
  EXPECT_THAT(results_[0], IsOk());
  EXPECT_THAT(results_[1], StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(results_[2], IsOk());
}

TEST_F(FakeTransportTest, DeadPeer) {
  Write(0);
  decode_.KillPeer("prefill-0");
  EXPECT_THAT(results_[0], StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
  Write(1);
  EXPECT_TRUE(decode_.CompleteNext());
  EXPECT_THAT(results_[1], HasReason(Reason::kTransport));
  EXPECT_THAT(decode_.Connect({.name = "prefill-0", .address = "prefill"}),
              HasReason(Reason::kNoTransport));
}

TEST_F(FakeTransportTest, BytesLandEarlyAndTheEndComesLate) {
  Write(0);
  const int64_t id = PendingIds()[0];
  EXPECT_TRUE(decode_.CopyOnly(id));
  EXPECT_EQ(target_[0], std::byte{5});
  EXPECT_TRUE(results_.empty());
  EXPECT_TRUE(decode_.End(id, absl::OkStatus()));
  EXPECT_THAT(results_[0], IsOk());
}

TEST_F(FakeTransportTest, SealsCancelAndRanges) {
  auto cancel = std::make_shared<CancelToken>();
  Write(0, 1, cancel);
  cancel->Cancel();
  EXPECT_TRUE(decode_.pending()[0].cancelled);
  decode_.CompleteAll();
  EXPECT_THAT(results_[0], StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(target_[0], std::byte{0});
  Write(10);
  decode_.CompleteAll();
  EXPECT_THAT(results_[10], HasReason(Reason::kBadPages));
  prefill_.BreakSeal({kSource, 0, 77});
  Write(1);
  decode_.CompleteAll();
  EXPECT_THAT(results_[1], StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
}

TEST_F(FakeTransportTest, FlushUnmapAndClose) {
  Write(0);
  std::optional<absl::Status> flushed;
  peer_->Flush([&](absl::Status status) { flushed = status; });
  EXPECT_THAT(decode_.UnmapRegion(kTarget), HasReason(Reason::kInUse));
  EXPECT_FALSE(flushed.has_value());
  peer_.reset();
  EXPECT_THAT(results_[0], StatusIs(absl::StatusCode::kCancelled));
  ASSERT_TRUE(flushed.has_value());
  EXPECT_THAT(*flushed, IsOk());
  EXPECT_THAT(decode_.UnmapRegion(kTarget), IsOk());
}

TEST_F(FakeTransportTest, SourceDrives) {
  FakeTransport pusher(network_,
                       {.kind = TransportKind::kTcp, .driver = Driver::kSource, .address = "push"});
  EXPECT_THAT(pusher.MapRegion({kSource, source_.data(), ByteCount(100), {}}), IsOk());
  auto peer = pusher.Connect({.name = "decode-0", .address = "decode"});
  ASSERT_THAT(peer, IsOk());
  std::swap(peer_, *peer);
  Write(9);
  std::swap(peer_, *peer);
  EXPECT_EQ(pusher.CompleteAll(), 1U);
  EXPECT_THAT(results_[9], IsOk());
  EXPECT_EQ(target_[99], std::byte{5});
  EXPECT_THAT(pusher.Connect({.name = "x", .address = "nowhere"}), HasReason(Reason::kNoTransport));
}

}  // namespace
}  // namespace pageferry::transport
