#include <algorithm>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/transport/ucx_endpoint.h"
#include "tests/unit/transport/ucx_fixture.h"

namespace pageferry::transport {
namespace {

using wire::MessageId;

/// Anybody who reaches the port: a UCX worker that sends what it likes.
class Attacker {
 public:
  explicit Attacker(const std::string& address) : worker_(*UcxWorker::Start({})) {
    worker_->Run([&] {
      endpoint_ = *UcxEndpoint::Create(*worker_, wire::DecodeAddress(address)->worker,
                                       [](const absl::Status&) {});
    });
  }
  ~Attacker() {
    absl::Notification closed;
    worker_->Post([&] { endpoint_->Close([&] { closed.Notify(); }); });
    closed.WaitForNotification();
    worker_->Run([&] { endpoint_.reset(); });
  }

  void Send(MessageId id, const std::string& header, const std::string& payload = "") {
    const auto bytes = std::make_shared<std::string>(payload);
    worker_->Run([&] {
      endpoint_->Send(id, header,
                      {{reinterpret_cast<const std::byte*>(bytes->data()), bytes->size()}},
                      [bytes] {});
    });
  }

 private:
  std::unique_ptr<UcxWorker> worker_;
  std::unique_ptr<UcxEndpoint> endpoint_;
};

std::string RangesOf(const std::vector<wire::Range>& ranges) {
  return {reinterpret_cast<const char*>(ranges.data()), ranges.size() * sizeof(wire::Range)};
}

TEST(UcxHostileTest, I6_StrangersChangeNothing) {
  constexpr int64_t kBytes = 1 << 20;
  UcxPair pair(kBytes);
  std::ranges::fill(pair.target, std::byte{9});
  Attacker at_target(pair.transport->address());
  at_target.Send(MessageId::kData, BytesOf(wire::Data{.nonce = 1, .request = 1}),
                 std::string(wire::kPayload, 'x'));
  at_target.Send(MessageId::kDone, BytesOf(wire::Done{.nonce = 1, .request = 1}));
  at_target.Send(MessageId::kHailReply, BytesOf(wire::HailReply{.nonce = 1}));
  at_target.Send(MessageId::kHail, BytesOf(wire::Hail{.nonce = 1}));
  at_target.Send(MessageId::kRead, BytesOf(wire::Read{.ranges = 1}),
                 RangesOf({{.region = kTargetRegion.value(), .size = 10}}));
  at_target.Send(MessageId::kData, "");
  at_target.Send(MessageId::kData, BytesOf(wire::Done{}));
  at_target.Send(MessageId::kRead, std::string(5000, 'z'));
  pair.target_refused.Await("malformed", 3);
  EXPECT_EQ(pair.target_refused.Of("data"), 1);
  EXPECT_EQ(pair.target_refused.Of("done"), 1);
  EXPECT_EQ(pair.target_refused.Of("hail"), 2);
  EXPECT_EQ(pair.target_refused.Of("read"), 1);
  EXPECT_EQ(std::ranges::count(pair.target, std::byte{9}), kBytes);
  // And the connection goes on.
  EXPECT_THAT(pair.WriteAndWait(pair.WholeBatch(pair.MakeSeal())), IsOk());
}

/// A peer that was let in and breaks the rules: `read` is sent with its secret.
void ExpectCutOff(const wire::Read& read, const std::vector<wire::Range>& ranges) {
  UcxPair pair(1 << 20);
  Attacker peer(pair.source->address());
  wire::Read signed_read = read;
  signed_read.token = wire::DecodeAddress(pair.passive->address())->token;
  peer.Send(MessageId::kRead, BytesOf(signed_read), RangesOf(ranges));
  pair.source_refused.Await("read", 1);
  // Whoever has that secret is not served any more.
  const absl::Status status = pair.WriteAndWait(pair.WholeBatch(pair.MakeSeal()));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
}

TEST(UcxHostileTest, I6_SizesThatDoNotAddUpCutThePeerOff) {
  const int64_t region = kSourceRegion.value();
  ExpectCutOff({.ranges = 1, .bytes = 11}, {{.region = region, .offset = 0, .size = 10}});
  ExpectCutOff({.ranges = 2, .bytes = 10}, {{.region = region, .offset = 0, .size = 10}});
  ExpectCutOff({.ranges = 1, .bytes = -1}, {{.region = region, .offset = 0, .size = -1}});
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  ExpectCutOff({.ranges = 1, .bytes = kMax}, {{.region = region, .offset = 0, .size = kMax}});
  ExpectCutOff({.ranges = 1, .bytes = 0}, {{.region = region, .offset = 0, .size = 0}});
}

TEST(UcxHostileTest, I6_RangesOutsideARegionGetNoByte) {
  UcxPair pair(1 << 20);
  const Seal seal = pair.MakeSeal();
  // The target believes a larger region: only the source can know better.
  PeerSpec spec = pair.Spec();
  spec.regions[0].size = ByteCount(int64_t{1} << 60);
  spec.regions.push_back({.id = RegionId(77), .size = ByteCount(4096)});
  pair.passive = *pair.source->Accept({.name = "decode-0", .address = pair.transport->address()});
  spec.address = pair.passive->address();
  pair.peer = *pair.transport->Connect(spec);
  const auto bad = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPages);
  const int64_t size = pair.pool->size().value();
  EXPECT_THAT(pair.WriteAndWait(pair.MakeBatch({Entry(size - 10, 0, 11)}, {{0, 0, 1}}, seal)), bad);
  EXPECT_THAT(
      pair.WriteAndWait(pair.MakeBatch({Entry(int64_t{1} << 50, 0, 11)}, {{0, 0, 1}}, seal)), bad);
  EntryPair unknown = Entry(0, 0, 16);
  unknown.source_region = RegionId(77);
  EXPECT_THAT(pair.WriteAndWait(pair.MakeBatch({unknown}, {{0, 0, 1}}, seal)), bad);
  Batch sealed_elsewhere = pair.MakeBatch({Entry(0, 0, 16)}, {{0, 0, 1}}, seal);
  sealed_elsewhere.seal.region = RegionId(77);
  EXPECT_THAT(pair.WriteAndWait(std::move(sealed_elsewhere)), bad);
  Batch bad_index = pair.MakeBatch({Entry(0, 0, 16)}, {{0, 0, 1}}, seal);
  bad_index.seal.index = -5;
  EXPECT_THAT(pair.WriteAndWait(std::move(bad_index)),
              StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
  EXPECT_THAT(pair.WriteAndWait(pair.MakeBatch({Entry(0, 0, 16)}, {{0, 0, 1}}, seal)), IsOk());
}

TEST(UcxHostileTest, I6_APoolCutShortFailsTheWriteOnly) {
  constexpr int64_t kBytes = 4 << 20;
  UcxPair pair(kBytes);
  std::filesystem::resize_file(pair.folder.File("pageferry.prefill-0.kv"), 2 << 20);
  EXPECT_THAT(pair.WriteAndWait(pair.WholeBatch(pair.MakeSeal())),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
}

}  // namespace
}  // namespace pageferry::transport
