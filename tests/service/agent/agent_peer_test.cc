// The agent's peer side, frame by frame.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/service/agent/agent_fixture.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::agent {
namespace {

class PeerTest : public PairTest {
 protected:
  void SetUp() override {
    PairTest::SetUp();
    if (HasFatalFailure()) return;
    address_ = prefill_agent_->peer_address();
    ASSERT_OK_AND_ASSIGN(const pb::GetAgentResponse agent, prefill_->GetAgent());
    epoch_ = agent.agent().epoch();
  }

  peer_pb::DecodeFrame Hello() const { return HelloOf(*prefill_agent_, epoch_); }

  static Reason ReasonIn(const error::v1::ErrorDetail& detail) {
    return ReasonOf(FromErrorDetail(detail));
  }

  std::string address_;
  int64_t epoch_ = 0;
};

TEST_F(PeerTest, AFrameBeforeHelloEndsTheSession) {
  RawPeer peer(address_);
  peer_pb::DecodeFrame grant;
  grant.set_sequence(1);
  grant.set_epoch(7);
  grant.mutable_grant()->mutable_room()->set_room_id(1);
  grant.mutable_grant()->mutable_room()->set_attempt(1);
  grant.mutable_grant()->set_decode_rank_count(1);
  ASSERT_TRUE(peer.Send(grant));
  EXPECT_FALSE(peer.Receive().has_value());
  EXPECT_THAT(peer.Finish(), StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder));
}

TEST_F(PeerTest, I6_HelloIsCheckedFieldByField) {
  struct Case {
    Reason reason;
    std::function<void(peer_pb::Hello&)> spoil;
  };
  const std::vector<Case> cases = {
      {Reason::kStaleEpoch,
       [](auto& h) { h.mutable_expected()->set_epoch(h.expected().epoch() + 1); }},
      {Reason::kStaleEpoch, [](auto& h) { h.mutable_expected()->set_agent_id("other"); }},
      {Reason::kProtocolVersion,
       [](auto& h) {
         h.set_protocol_min(2);
         h.set_protocol_max(3);
       }},
      {Reason::kEnginesIncompatible, [](auto& h) { h.mutable_engine()->set_namespace_("b"); }},
      {Reason::kEnginesIncompatible,
       [](auto& h) { h.mutable_engine()->set_role(topology_pb::ROLE_PREFILL); }},
      {Reason::kUnsupported, [](auto& h) { h.mutable_engine()->mutable_shape()->set_tp(2); }},
      {Reason::kNoTransport, [](auto& h) { h.set_host_id("elsewhere"); }},
      {Reason::kNoTransport, [](auto& h) { h.mutable_transports(0)->set_unusable("broken"); }},
      {Reason::kNoTransport, [](auto& h) { h.clear_transports(); }},
      {Reason::kInvalidField, [](auto& h) { h.mutable_regions(0)->set_size_bytes(4096); }},
      {Reason::kInvalidField, [](auto& h) { h.clear_session_id(); }},
      {Reason::kInvalidField, [](auto& h) { h.mutable_agent()->set_epoch(0); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    RawPeer peer(address_);
    peer_pb::DecodeFrame hello = Hello();
    cases[i].spoil(*hello.mutable_hello());
    ASSERT_TRUE(peer.Send(hello));
    const auto reply = peer.Receive();
    if (reply.has_value()) {
      EXPECT_EQ(ReasonIn(reply->hello_reply().error()), cases[i].reason) << i;
    }
    EXPECT_THAT(peer.Finish(), HasReason(cases[i].reason)) << i;
  }
}

TEST_F(PeerTest, ASecondHelloAndAStaleEpochChangeNothing) {
  RawPeer peer(address_);
  peer_pb::DecodeFrame hello = Hello();
  ASSERT_TRUE(peer.Send(hello));
  const auto reply = peer.Receive();
  ASSERT_TRUE(reply.has_value());
  ASSERT_FALSE(reply->hello_reply().has_error()) << reply->ShortDebugString();
  EXPECT_EQ(reply->hello_reply().transport().kind(), peer_pb::TRANSPORT_KIND_LOCAL);
  EXPECT_GT(reply->hello_reply().regions_size(), 0);

  ASSERT_TRUE(peer.Send(hello));
  auto refused = peer.Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(ReasonIn(refused->refused().error()), Reason::kOutOfOrder);
  EXPECT_EQ(refused->sequence(), 1);

  peer_pb::DecodeFrame grant;
  grant.set_sequence(1);
  grant.set_epoch(6);
  peer_pb::Grant& body = *grant.mutable_grant();
  body.mutable_room()->set_room_id(5);
  body.mutable_room()->set_attempt(1);
  body.set_decode_rank_count(1);
  *body.add_page_runs() = PagesAt(0, 2);
  ASSERT_TRUE(peer.Send(grant));
  refused = peer.Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(ReasonIn(refused->refused().error()), Reason::kStaleEpoch);
  EXPECT_EQ(refused->refused().sequence(), 1);
  EXPECT_THAT(prefill_->GetRoom(5), HasReason(Reason::kRoomNotFound));

  // The same number is still free, since the frame changed nothing.
  grant.set_epoch(7);
  ASSERT_TRUE(peer.Send(grant));
  ASSERT_TRUE(Eventually([&] { return prefill_->GetRoom(5).ok(); }));
  ASSERT_TRUE(peer.Send(grant));
  refused = peer.Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(ReasonIn(refused->refused().error()), Reason::kOutOfOrder);

  grant.set_sequence(2);
  body.mutable_room()->set_room_id(6);
  body.set_priority(1000);
  ASSERT_TRUE(peer.Send(grant));
  refused = peer.Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->refused().sequence(), 2);
  EXPECT_EQ(ReasonIn(refused->refused().error()), Reason::kInvalidField);

  grant.set_sequence(4);
  ASSERT_TRUE(peer.Send(grant));
  EXPECT_THAT(peer.Finish(), HasReason(Reason::kOutOfOrder));
}

TEST_F(PeerTest, I5_AHelloOfAnOlderEpochLeavesTheLiveSessionAlone) {
  RawPeer live(address_);
  peer_pb::DecodeFrame hello = Hello();
  ASSERT_TRUE(live.Send(hello));
  auto reply = live.Receive();
  ASSERT_TRUE(reply.has_value());
  ASSERT_FALSE(reply->hello_reply().has_error()) << reply->ShortDebugString();
  EXPECT_GT(reply->hello_reply().room_credit(), 0);

  RawPeer old(address_);
  peer_pb::DecodeFrame stale = Hello();
  stale.mutable_hello()->mutable_agent()->set_epoch(hello.hello().agent().epoch() - 1);
  stale.set_epoch(hello.hello().agent().epoch() - 1);
  ASSERT_TRUE(old.Send(stale));
  EXPECT_THAT(old.Finish(), HasReason(Reason::kStaleEpoch));

  // The first still answers; a younger one takes its place.
  peer_pb::DecodeFrame beat;
  beat.set_epoch(hello.hello().agent().epoch());
  beat.mutable_heartbeat()->set_nonce(5);
  ASSERT_TRUE(live.Send(beat));
  reply = live.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->heartbeat_reply().nonce(), 5);
  RawPeer young(address_);
  peer_pb::DecodeFrame newer = Hello();
  newer.mutable_hello()->mutable_agent()->set_epoch(hello.hello().agent().epoch() + 1);
  newer.set_epoch(hello.hello().agent().epoch() + 1);
  ASSERT_TRUE(young.Send(newer));
  reply = young.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_FALSE(reply->hello_reply().has_error()) << reply->ShortDebugString();
  EXPECT_THAT(live.Finish(), HasReason(Reason::kPeerLost));
}

TEST_F(PeerTest, ACutStreamFailsItsRooms) {
  RawPeer peer(address_);
  ASSERT_TRUE(peer.Send(Hello()));
  ASSERT_TRUE(peer.Receive().has_value());
  peer_pb::DecodeFrame grant;
  grant.set_sequence(1);
  grant.set_epoch(7);
  peer_pb::Grant& body = *grant.mutable_grant();
  body.mutable_room()->set_room_id(8);
  body.mutable_room()->set_attempt(1);
  body.set_decode_rank_count(1);
  body.set_aux_slot(0);
  *body.add_page_runs() = PagesAt(0, 2);
  ASSERT_TRUE(peer.Send(grant));
  prefill_->Send(OpenSendOf(8));
  ASSERT_TRUE(prefill_->WaitFor([](const auto& e) { return e.has_prefix_known(); }).has_value());
  prefill_->Send(ChunkOf(8, {{0, 2}}, 0, false, -1));
  const auto offer = peer.Receive();
  ASSERT_TRUE(offer.has_value());
  EXPECT_TRUE(offer->has_offer()) << offer->ShortDebugString();
  peer.Cancel();
  const auto failed = prefill_->WaitForFailure(8);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(ReasonIn(failed->error()), Reason::kPeerLost);
  EXPECT_TRUE(failed->drained() || prefill_->WaitForEnd(8).has_value());
}

TEST_F(PeerTest, ASilentPeerIsFoundWithinItsTime) {
  RawPeer peer(address_);
  ASSERT_TRUE(peer.Send(Hello()));
  ASSERT_TRUE(peer.Receive().has_value());
  peer_pb::DecodeFrame grant;
  grant.set_sequence(1);
  grant.set_epoch(7);
  grant.mutable_grant()->mutable_room()->set_room_id(9);
  grant.mutable_grant()->mutable_room()->set_attempt(1);
  grant.mutable_grant()->set_decode_rank_count(1);
  ASSERT_TRUE(peer.Send(grant));
  prefill_->Send(OpenSendOf(9));
  const absl::Time begun = absl::Now();
  const auto failed = prefill_->WaitForFailure(9);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(ReasonIn(failed->error()), Reason::kPeerLost);
  EXPECT_LT(absl::Now() - begun, absl::Seconds(10));
  EXPECT_FALSE(peer.Receive().has_value());
}

TEST_F(PeerTest, DataIsNotThereYet) {
  EXPECT_THAT(RawPeer::TryData(address_),
              StatusIs(absl::StatusCode::kUnimplemented, Reason::kUnsupported));
}

}  // namespace
}  // namespace pageferry::agent
