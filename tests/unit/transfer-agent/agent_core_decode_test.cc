#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/receive_room.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/core_fixture.h"

namespace pageferry::agent {
namespace {

class DecodeCoreTest : public CoreTest {
 protected:
  DecodeCoreTest() : CoreTest(Role::kDecode) {}

  void Open(int64_t attempt = 1, int64_t room = 9, int64_t page = 10) {
    Say(OpenReceive{.room = Key(room, attempt),
                    .prefill_engine = EngineId("prefill"),
                    .runs = {{page, 2}},
                    .prefill_dp_rank = 0,
                    .timeout = absl::Seconds(30),
                    .capability = "secret"});
  }
  /// Answers the only search.
  void Find(absl::StatusOr<PeerId> peer = kPeer) {
    ASSERT_EQ(ports_.finder.open.size(), 1u);
    const int64_t ticket = ports_.finder.open.begin()->first;
    ports_.finder.open.clear();
    core_->OnPeerFound(ticket, peer, now_);
  }
  void GetAll(int64_t attempt = 1) {
    Hear(Offer{.room = Key(9, attempt), .runs = {{0, 2}}, .last = true});
    Hear(Completed{.room = Key(9, attempt), .pages = 2, .bytes = ByteCount(64)});
  }
  /// Answers the oldest move.
  void Done(const absl::Status& status = absl::OkStatus()) {
    ASSERT_FALSE(ports_.mover.running.empty());
    const int64_t ticket = ports_.mover.running.begin()->first;
    ports_.mover.running.erase(ticket);
    core_->OnMoveDone(ticket, status, now_);
  }
  void Clear() { Events(), Frames(); }
};

TEST_F(DecodeCoreTest, ARoomFromOpenToSuccess) {
  Open();
  EXPECT_EQ(core_->Ledger().at("tickets"), 1);
  EXPECT_EQ(ports_.finder.open.begin()->second.deadline, now_ + absl::Seconds(30));
  EXPECT_EQ(ports_.finder.open.begin()->second.query.dp_rank, 0);
  Pass(absl::Seconds(1));
  Find();
  EXPECT_EQ(ports_.peers.All<Grant>().at(0).timeout, absl::Seconds(29));
  EXPECT_EQ(ports_.peers.All<Grant>().at(0).capability, "secret");
  GetAll();
  EXPECT_EQ(core_->Ledger().at("moves_running"), 1);
  Pass(absl::Seconds(2));
  Done();
  const std::vector<RoomEvent> events = ports_.engine.All<RoomEvent>();
  EXPECT_EQ(events.back().since_grant, absl::Seconds(2));
  EXPECT_EQ(events.back().elapsed, absl::Seconds(3));
  EXPECT_EQ(events.back().bytes, ByteCount(64));
  EXPECT_EQ(Events(),
            "event BOOTSTRAPPING; event WAITING_FOR_INPUT; event TRANSFERRING; event SUCCESS "
            "drained");
  EXPECT_EQ(Frames(), "grant 2 behind 0; taken 2/64 complete");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, BadRequestsMakeNoRoom) {
  Say(OpenReceive{.room = Key(9, 0), .prefill_engine = EngineId("p")});
  Say(OpenReceive{.room = Key(9, 1), .prefill_engine = EngineId("p"), .runs = {{kPages, 1}}});
  Say(OpenSend{.room = Key(9, 0)});
  EXPECT_EQ(Events(),
            "refused open_receive INVALID_FIELD; refused open_receive BAD_PAGES; "
            "refused open_send INVALID_FIELD");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, NoPeerNoRoom) {
  Open();
  Clear();
  Find(MakeError(absl::StatusCode::kNotFound, Reason::kEngineNotFound, ""));
  EXPECT_EQ(Events(), "event FAILED ENGINE_NOT_FOUND; event FAILED ENGINE_NOT_FOUND drained");
  EXPECT_EQ(Frames(), "");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, APeerThatIsGoneOrGoingGetsNoGrant) {
  Open(1, 1), Find(PeerId(99));
  EXPECT_THAT(Events(), testing::EndsWith("FAILED PEER_LOST drained"));
  Hear(GoAway{.error = MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "")});
  Open(1, 2), Find();
  EXPECT_THAT(Events(), testing::EndsWith("FAILED DRAINING drained"));
  PeerInfo info = TestPeer(Role::kDecode, "rdma");
  info.driver = transport::Driver::kSource;
  core_->OnPeerUp(PeerId(12), info, now_);
  Open(1, 3), Find(PeerId(12));
  EXPECT_THAT(Events(), testing::EndsWith("FAILED UNSUPPORTED drained"));
  EXPECT_EQ(Frames(), "");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, EnginesThatDoNotMatchGetNoGrant) {
  PeerInfo info = TestPeer(Role::kDecode, "odd");
  info.engine.profile.entries.pop_back();
  core_->OnPeerUp(PeerId(12), info, now_);
  Open(), Find(PeerId(12));
  EXPECT_THAT(Events(), testing::EndsWith("FAILED ENGINES_INCOMPATIBLE drained"));
}

TEST_F(DecodeCoreTest, SessionsThatWereThereBeforeTheEngineServeIt) {
  core_ = std::make_unique<AgentCore>(CoreLimits{}, ports_.Get());
  core_->OnPeerUp(kPeer, TestPeer(Role::kDecode), now_);
  core_->SetEngine(TestEngine(Role::kDecode), TestAgent("self"));
  Open(), Find(), GetAll(), Done();
  EXPECT_THAT(Events(), testing::EndsWith("event SUCCESS drained"));
}

TEST_F(DecodeCoreTest, I7_ADuplicateIsRefusedAndTheFirstGoesOn) {
  Open(), Find();
  Clear();
  Open();
  EXPECT_EQ(Events(), "refused open_receive DUPLICATE_ROOM");
  GetAll(), Done();
  EXPECT_EQ(Events(), "event TRANSFERRING; event SUCCESS drained");
  Open();
  EXPECT_EQ(Events(), "refused open_receive STALE_ATTEMPT");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, I1_AHigherAttemptBeginsWhileTheLowerStillDrains) {
  Open(1), Find();
  Hear(Offer{.room = Key(9, 1), .runs = {{0, 1}}});
  Clear();
  Open(2, 9, 12);
  EXPECT_EQ(Events(), "event FAILED STALE_ATTEMPT; event BOOTSTRAPPING");
  EXPECT_EQ(Frames(), "abort STALE_ATTEMPT");
  EXPECT_EQ(core_->LiveRooms(), 2);
  Open(1);
  EXPECT_EQ(Events(), "refused open_receive STALE_ATTEMPT");
  Find();
  GetAll(2);
  Clear();
  const int64_t first = ports_.mover.running.begin()->first;
  const int64_t second = ports_.mover.running.rbegin()->first;
  core_->OnMoveDone(second, absl::OkStatus(), now_);
  EXPECT_EQ(Events(), "event SUCCESS drained");
  EXPECT_EQ(core_->LiveRooms(), 1);
  core_->OnMoveDone(first, absl::CancelledError(), now_);
  EXPECT_EQ(Events(), "event FAILED STALE_ATTEMPT drained");
  ports_.mover.running.clear();
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, I1_I12_APageIsGrantedToOneRoomUntilThatIsDrained) {
  const auto open = [&](int64_t room, std::vector<PageRun> runs, int64_t slot,
                        std::vector<StateIndices> states) {
    Say(OpenReceive{.room = Key(room, 1),
                    .prefill_engine = EngineId("prefill"),
                    .runs = std::move(runs),
                    .aux_slot = slot,
                    .states = std::move(states),
                    .timeout = absl::Seconds(30)});
    return Events();
  };
  const std::string good = "event BOOTSTRAPPING";
  const std::string bad = "refused open_receive BAD_PAGES";
  EXPECT_EQ(open(9, {{10, 2}, {20, 1}}, 1, {{0, {3, 5}}}), good);
  EXPECT_EQ(open(1, {{0, 1}, {11, 1}}, 2, {}), bad);
  EXPECT_EQ(open(1, {{0, 1}}, 1, {}), bad);
  EXPECT_EQ(open(1, {{0, 1}}, 2, {{0, {4, 5}}}), bad);
  EXPECT_EQ(open(1, {{0, 1}, {12, 8}}, 2, {{0, {4}}}), good);  // the refused ones hold nothing

  // Failed is not enough: a copy runs.
  const int64_t ticket = ports_.finder.open.begin()->first;
  ports_.finder.open.clear();
  core_->OnPeerFound(ticket, kPeer, now_);
  Hear(Offer{.room = Key(9, 1), .runs = {{0, 1}}});
  Say(AbortCommand{.room = Key(9, 1)});
  Clear();
  EXPECT_EQ(open(2, {{10, 1}}, -1, {}), bad);
  core_->OnMoveDone(ports_.mover.running.begin()->first, absl::CancelledError(), now_);
  ports_.mover.running.clear();
  Clear();
  EXPECT_EQ(open(2, {{10, 2}, {20, 1}}, 1, {{0, {3, 5}}}), good);
}

TEST_F(DecodeCoreTest, I4_APeerThatIsFoundTooLateIsToldTheReason) {
  Open();
  Say(AbortCommand{.room = Key(9, 1), .detail = "client went"});
  EXPECT_EQ(Events(), "event BOOTSTRAPPING; event FAILED ABORTED; event FAILED ABORTED drained");
  EXPECT_EQ(core_->LiveRooms(), 0);
  EXPECT_EQ(core_->Ledger().at("tickets"), 1);
  Find();
  ASSERT_EQ(ports_.peers.All<Abort>().size(), 1u);
  EXPECT_EQ(ports_.peers.All<Abort>()[0].room, Key(9, 1));
  EXPECT_EQ(ports_.peers.All<Abort>()[0].capability, "secret");
  EXPECT_TRUE(ports_.peers.All<Grant>().empty());
  Clear();
  Hear(AbortReply{.room = Key(9, 1), .drained = true});
  EXPECT_EQ(Frames(), "");
  ExpectQuiet();

  // Nobody is to be told of what a new attempt has taken over, or where there is no peer.
  Open(2), Say(AbortCommand{.room = Key(9, 2)});
  Open(3);
  Clear();
  Find();
  EXPECT_TRUE(ports_.peers.All<Abort>().empty());
  EXPECT_EQ(ports_.peers.All<Grant>().size(), 1u);
  Say(AbortCommand{.room = Key(9, 3)});
  Open(4), Say(AbortCommand{.room = Key(9, 4)});
  Find(absl::UnavailableError("no engine"));
  Clear();
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, I9_NoMoreGrantsThanThePeerTakes) {
  PeerInfo peer = TestPeer(Role::kDecode, "small");
  peer.room_credit = 2;
  core_->OnPeerUp(PeerId(3), peer, now_);
  Open(1, 1, 0), Find(PeerId(3));
  Open(1, 2, 2), Find(PeerId(3));
  Clear();
  Open(1, 3, 4), Find(PeerId(3));
  EXPECT_EQ(Events(),
            "event BOOTSTRAPPING; event FAILED LIMIT_REACHED; event FAILED LIMIT_REACHED drained");
  EXPECT_EQ(Frames(), "");
}

TEST_F(DecodeCoreTest, ARefusedGrantEndsTheRoom) {
  Open(), Find();
  Clear();
  Hear(Refused{.sequence = Sequence(1), .room = Key(9, 1), .error = LimitReached("rooms", 1)});
  EXPECT_EQ(Events(), "event FAILED LIMIT_REACHED; event FAILED LIMIT_REACHED drained");
  EXPECT_EQ(Frames(), "");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, I3_FailedBeatsASuccessThatHasNotCome) {
  Open(), Find(), GetAll();
  Clear();
  Hear(Failed{.room = Key(9, 1), .error = FailedByEngine("oom").tell});
  EXPECT_EQ(Events(), "event FAILED PEER_ENGINE_FAILED");
  EXPECT_TRUE(ports_.mover.running.begin()->second.batch.cancel->cancelled());
  Done();
  EXPECT_EQ(Events(), "event FAILED PEER_ENGINE_FAILED drained");
  EXPECT_EQ(Frames(), "");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, I3_NothingChangesAfterSuccess) {
  Open(), Find(), GetAll(), Done();
  Clear();
  Hear(Failed{.room = Key(9, 1), .error = absl::AbortedError("")});
  Hear(Offer{.room = Key(9, 1), .runs = {{0, 1}}});
  Hear(Refused{.room = Key(9, 1), .error = absl::AbortedError("")});
  Say(AbortCommand{.room = Key(9, 1)});
  core_->OnPeerDown(kPeer, absl::UnavailableError(""), now_);
  EXPECT_EQ(Events() + Frames(), "");
}

TEST_F(DecodeCoreTest, FramesForUnknownRoomsAreRefusedAndRefusalsAreNot) {
  Hear(Offer{.room = Key(1, 1)});
  Hear(Completed{.room = Key(1, 1)});
  Hear(Failed{.room = Key(1, 1), .error = absl::AbortedError("")});
  Hear(Refused{.room = Key(1, 1), .error = absl::AbortedError("")});
  Hear(AbortReply{.room = Key(1, 1), .drained = true});
  Hear(Taken{.room = Key(1, 1)});
  EXPECT_EQ(Frames(),
            "refused #1 ROOM_NOT_FOUND; refused #2 ROOM_NOT_FOUND; refused #3 ROOM_NOT_FOUND; "
            "refused #6 ROOM_NOT_FOUND");
  Hear(Grant{.room = Key(1, 1)});
  EXPECT_EQ(Frames(), "refused #7 INVALID_FIELD");
}

TEST_F(DecodeCoreTest, AbortOfPrefillIsAnsweredTwiceWhereMovesRun) {
  Open(), Find();
  Hear(Offer{.room = Key(9, 1), .runs = {{0, 1}}});
  Clear();
  Hear(Abort{.room = Key(9, 1), .error = AbortedByEngine("").tell});
  EXPECT_EQ(Frames(), "abort_reply");
  Done(absl::CancelledError());
  EXPECT_EQ(Frames(), "abort_reply drained");
  EXPECT_EQ(Events(), "event FAILED PEER_ABORTED; event FAILED PEER_ABORTED drained");
}

TEST_F(DecodeCoreTest, BrokenSealWaitsForItsReasonOneSecond) {
  Open(), Find(), GetAll();
  Done(MakeError(absl::StatusCode::kAborted, Reason::kSealBroken, ""));
  Clear();
  EXPECT_EQ(core_->NextDeadline(), now_ + ReceiveRoom::kSealGrace);
  Pass(absl::Milliseconds(500));
  Hear(Failed{.room = Key(9, 1), .error = FailedByEngine("").tell});
  EXPECT_EQ(Events(), "event FAILED PEER_ENGINE_FAILED; event FAILED PEER_ENGINE_FAILED drained");
  Open(1, 10), Find();
  Hear(Offer{.room = Key(10, 1), .runs = {{0, 2}}});
  Done(MakeError(absl::StatusCode::kAborted, Reason::kSealBroken, ""));
  Clear();
  Pass(absl::Seconds(1));
  EXPECT_EQ(Events(), "event FAILED SEAL_BROKEN; event FAILED SEAL_BROKEN drained");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, I8_ALostPeerFailsItsOwnRoomsOnly) {
  Open(1, 9), Find(), Open(1, 10, 12), Find(kOtherPeer);
  Hear(Offer{.room = Key(9, 1), .runs = {{0, 1}}});
  Clear();
  core_->OnPeerDown(kPeer, absl::UnavailableError("no heartbeat"), now_);
  EXPECT_EQ(Events(), "engine_lost prefill; event FAILED PEER_LOST");
  Done(absl::CancelledError());
  EXPECT_EQ(Events(), "event FAILED PEER_LOST drained");
  EXPECT_EQ(core_->LiveRooms(), 1);
}

TEST_F(DecodeCoreTest, I4_DeadlineFailsTheRoomOnBothSides) {
  Open(), Find();
  Clear();
  Pass(absl::Seconds(30) - absl::Nanoseconds(1));
  EXPECT_EQ(Events(), "");
  Pass(absl::Nanoseconds(1));
  EXPECT_EQ(Events(), "event FAILED DEADLINE; event FAILED DEADLINE drained");
  EXPECT_EQ(MetadataOf(ports_.peers.All<Abort>().at(0).error).at("state"), "WAITING_FOR_INPUT");
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, EngineGoneDrainsWhatMoves) {
  Open(), Find();
  Hear(Offer{.room = Key(9, 1), .runs = {{0, 1}}});
  Open(1, 10);
  Clear();
  core_->OnEngineGone(absl::CancelledError(""), now_);
  EXPECT_EQ(Frames(), "abort ENGINE_LOST");
  EXPECT_EQ(core_->LiveRooms(), 1);
  Done(absl::CancelledError());
  ExpectQuiet();
}

TEST_F(DecodeCoreTest, AllAttemptsAreAbortedByAttemptZero) {
  Open(3), Find();
  Clear();
  Say(AbortCommand{.room = Key(9, 2)});
  EXPECT_EQ(Events(), "refused abort ROOM_NOT_FOUND");
  Say(AbortCommand{.room = Key(9, 0), .detail = "x"});
  EXPECT_EQ(Events(), "event FAILED ABORTED; event FAILED ABORTED drained");
  EXPECT_EQ(Frames(), "abort PEER_ABORTED");
}

}  // namespace
}  // namespace pageferry::agent
