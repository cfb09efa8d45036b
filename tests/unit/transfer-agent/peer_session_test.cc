#include "services/transfer-agent/peer_session.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/fake_loop.h"

namespace pageferry::agent {
namespace {

using State = PeerSession::State;

class FakeHost final : public PeerSession::Host {
 public:
  void OnHello(PeerSession&, Hello hello) override { hellos.push_back(std::move(hello)); }
  void OnHelloReply(PeerSession&, HelloReply reply) override {
    replies.push_back(std::move(reply));
  }
  void OnFrame(PeerSession&, Sequence sequence, PeerFrame frame) override {
    frames.emplace_back(sequence, std::move(frame));
  }
  void OnRefused(PeerSession&, Reason reason) override { refused.push_back(reason); }
  void OnClosed(PeerSession&, const absl::Status& why) override { closed.push_back(why); }
  int64_t RoomCount(const PeerSession&) override { return rooms; }

  std::vector<Hello> hellos;
  std::vector<HelloReply> replies;
  std::vector<std::pair<Sequence, PeerFrame>> frames;
  std::vector<Reason> refused;
  std::vector<absl::Status> closed;
  int64_t rooms = 0;
};

class PeerSessionTest : public testing::Test {
 protected:
  const AgentRef own_{AgentId("own"), Epoch(3)};
  const AgentRef peer_{AgentId("peer"), Epoch(7)};

  void Make(bool dialled) {
    session_ =
        std::make_unique<PeerSession>(loop_, host_, PeerId(1), dialled, stream_, PeerTimings());
  }
  void MakeLive(bool dialled) {
    Make(dialled);
    session_->Open(own_, peer_);
  }
  void Say(int64_t sequence, PeerFrame frame, int64_t epoch = 7) {
    session_->OnInput(
        {.sequence = Sequence(sequence), .epoch = Epoch(epoch), .content = std::move(frame)});
    loop_.Run();
  }
  static PeerFrame SomeFrame() { return AbortReply{.room = {RoomId(1), Attempt(1)}}; }

  FakeLoop loop_;
  FakeHost host_;
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::unique_ptr<PeerSession> session_;
};

TEST_F(PeerSessionTest, NumbersFramesAndAcknowledges) {
  MakeLive(false);
  Say(1, SomeFrame());
  Say(2, SomeFrame());
  session_->Send(SomeFrame());
  session_->Send(SomeFrame());
  ASSERT_EQ(stream_->sent.size(), 2);
  EXPECT_EQ(stream_->sent[0].sequence, Sequence(1));
  EXPECT_EQ(stream_->sent[1].sequence, Sequence(2));
  EXPECT_EQ(stream_->sent[1].acknowledged, Sequence(2));
  EXPECT_EQ(stream_->sent[1].epoch, own_.epoch);
  EXPECT_EQ(host_.frames.size(), 2);
  EXPECT_EQ(stream_->reads, 2);
}

TEST_F(PeerSessionTest, RefusesRepeatsAndOldEpochsAndGoesOn) {
  MakeLive(false);
  Say(1, SomeFrame());
  Say(1, SomeFrame());
  Say(0, SomeFrame());
  Say(2, SomeFrame(), 6);
  EXPECT_EQ(host_.frames.size(), 1);
  EXPECT_THAT(host_.refused,
              testing::ElementsAre(Reason::kOutOfOrder, Reason::kOutOfOrder, Reason::kStaleEpoch));
  const auto told = stream_->All<Refused>();
  ASSERT_EQ(told.size(), 3);
  EXPECT_EQ(told[2].sequence, Sequence(2));
  Say(2, SomeFrame());
  EXPECT_EQ(host_.frames.size(), 2);
  EXPECT_EQ(session_->state(), State::kLive);
}

TEST_F(PeerSessionTest, I6_ABadFrameIsRefusedAndCounts) {
  MakeLive(false);
  session_->OnInput({.sequence = Sequence(1),
                     .epoch = Epoch(7),
                     .content = BadFrame{.room = {RoomId(4), Attempt(1)},
                                         .error = InvalidField("priority", "1000", "100")}});
  const auto told = stream_->All<Refused>();
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0].room.id, RoomId(4));
  Say(2, SomeFrame());
  EXPECT_EQ(host_.frames.size(), 1);
}

TEST_F(PeerSessionTest, AGapEndsTheSession) {
  MakeLive(false);
  Say(2, SomeFrame());
  EXPECT_EQ(session_->state(), State::kClosed);
  ASSERT_EQ(host_.closed.size(), 1);
  EXPECT_THAT(host_.closed[0], HasReason(Reason::kOutOfOrder));
  EXPECT_TRUE(stream_->ended);
  Say(1, SomeFrame());
  session_->Send(SomeFrame());
  EXPECT_EQ(host_.frames.size(), 0);
  EXPECT_EQ(stream_->sent.size(), 0);
}

TEST_F(PeerSessionTest, OnlyHelloOpens) {
  Make(false);
  Say(1, SomeFrame());
  ASSERT_EQ(host_.closed.size(), 1);
  EXPECT_THAT(host_.closed[0], HasReason(Reason::kOutOfOrder));
}

TEST_F(PeerSessionTest, AnOpeningSessionDoesNotWaitForEver) {
  Make(true);
  loop_.Advance(absl::Seconds(5) - absl::Milliseconds(1));
  EXPECT_EQ(session_->state(), State::kOpening);
  loop_.Advance(absl::Milliseconds(1));
  ASSERT_EQ(host_.closed.size(), 1);
  EXPECT_THAT(host_.closed[0], StatusIs(absl::StatusCode::kUnavailable, Reason::kPeerLost));
}

TEST_F(PeerSessionTest, BeatsSlowlyWhileIdleAndFastWhileItHoldsRooms) {
  MakeLive(true);
  loop_.Advance(absl::Seconds(9));
  EXPECT_EQ(stream_->All<Heartbeat>().size(), 0);
  loop_.Advance(absl::Seconds(1));
  EXPECT_EQ(stream_->All<Heartbeat>().size(), 1);
  loop_.Advance(absl::Seconds(5));

  host_.rooms = 1;
  session_->Send(Grant{.room = {RoomId(1), Attempt(1)}});
  loop_.Advance(absl::ZeroDuration());
  EXPECT_EQ(stream_->All<Heartbeat>().size(), 2);  // a peer not heard of for long is asked at once
  for (int i = 0; i < 2; ++i) {
    session_->OnInput({.epoch = Epoch(7), .content = HeartbeatReply{}});
    loop_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(stream_->All<Heartbeat>().size(), 4);
  loop_.Advance(absl::Seconds(2) - absl::Milliseconds(1));
  EXPECT_EQ(session_->state(), State::kLive);
  loop_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(session_->state(), State::kClosed);
  ASSERT_EQ(host_.closed.size(), 1);
  EXPECT_THAT(host_.closed[0], HasReason(Reason::kPeerLost));
}

TEST_F(PeerSessionTest, ABusyPrefillSideMissesADecodeSideWithinThreeSeconds) {
  MakeLive(false);
  loop_.Advance(absl::Seconds(29));
  EXPECT_EQ(session_->state(), State::kLive);
  host_.rooms = 1;
  Say(1, Grant{.room = {RoomId(1), Attempt(1)}});
  loop_.Advance(absl::Seconds(2));
  session_->OnInput({.epoch = Epoch(7), .content = Heartbeat{.nonce = 5}});
  ASSERT_EQ(stream_->All<HeartbeatReply>().size(), 1);
  EXPECT_EQ(stream_->All<HeartbeatReply>()[0].nonce, 5);
  loop_.Advance(absl::Seconds(3) - absl::Milliseconds(1));
  EXPECT_EQ(session_->state(), State::kLive);
  loop_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(session_->state(), State::kClosed);
}

TEST_F(PeerSessionTest, AFullOutboxEndsItAndTellsOnce) {
  MakeLive(true);
  stream_->full = true;
  session_->Send(SomeFrame());
  EXPECT_TRUE(host_.closed.empty());  // not inside the call: that may come from the core
  loop_.Run();
  session_->Send(SomeFrame());
  session_->OnStreamEnded(absl::OkStatus());
  loop_.Run();
  ASSERT_EQ(host_.closed.size(), 1);
  EXPECT_THAT(host_.closed[0],
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitReached));
}

TEST_F(PeerSessionTest, TheDestructorEndsTheStreamSilently) {
  MakeLive(true);
  session_->Close(absl::CancelledError("by the test"));
  session_.reset();
  loop_.Run();
  EXPECT_TRUE(stream_->ended);
  EXPECT_EQ(stream_->handler, nullptr);
  EXPECT_TRUE(host_.closed.empty());
}

}  // namespace
}  // namespace pageferry::agent
