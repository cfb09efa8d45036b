#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "services/transfer-agent/agent_core.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/prefill_core_fixture.h"

namespace pageferry::agent {
namespace {

TEST_F(PrefillCoreTest, ARoomFromOpenToSuccess) {
  Open();
  GetGrant();
  SendAll();
  EXPECT_EQ(core_->Ledger().at("seals"), 1);
  TakeAll();
  EXPECT_EQ(Events(),
            "event BOOTSTRAPPING; event WAITING_FOR_INPUT; prefix 0+2; event TRANSFERRING; "
            "event SUCCESS drained");
  EXPECT_EQ(Frames(), "offer 0+2 last; completed 2/64");
  ExpectQuiet();
}

TEST_F(PrefillCoreTest, EventsCarryTheRealAttempt) {
  Open();
  GetGrant(3);
  const std::vector<RoomEvent> events = ports_.engine.All<RoomEvent>();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].room, Key(9, 0));
  EXPECT_EQ(events[1].room, Key(9, 3));
}

TEST_F(PrefillCoreTest, OpenSendBindsToTheHeldGrant) {
  GetGrant(2);
  EXPECT_EQ(Events(), "");
  EXPECT_EQ(core_->Ledger().at("grants_held"), 1);
  Open();
  EXPECT_EQ(Events(), "event WAITING_FOR_INPUT; prefix 0+2");
  EXPECT_EQ(core_->Ledger().at("grants_held"), 0);
}

TEST_F(PrefillCoreTest, I4_AnAbortWithoutAGrantEndsTheRoomThatWaitsForOne) {
  const absl::Status why = MakeError(absl::StatusCode::kAborted, Reason::kPeerAborted, "gone");
  Open(0, "secret");
  SendAll();
  Clear();
  Hear(Abort{.room = Key(9, 1), .error = why, .capability = "guess"});
  Hear(Abort{.room = Key(8, 1), .error = why, .capability = "secret"});
  EXPECT_EQ(Events(), "");
  Clear();
  Hear(Abort{.room = Key(9, 1), .error = why, .capability = "secret"});
  EXPECT_EQ(Events(), "event FAILED PEER_ABORTED; event FAILED PEER_ABORTED drained");
  ExpectQuiet();
  Clear();

  // A granted room is ended by its own session alone.
  Open(0, "secret", 7);
  Grant grant = MakeGrant(2, 7);
  grant.capability = "secret";
  Hear(grant);
  Clear();
  Hear(Abort{.room = Key(7, 1), .error = why, .capability = "secret"});
  Hear(Abort{.room = Key(7, 2), .error = why, .capability = "secret"}, kOtherPeer);
  EXPECT_EQ(Events(), "");
  EXPECT_EQ(core_->LiveRooms(), 1);
}

TEST_F(PrefillCoreTest, OrphanGrantExpiresAndTellsDecode) {
  CoreLimits limits;
  limits.orphan_grant_ttl = absl::Seconds(10);
  Make(Role::kPrefill, limits);
  GetGrant();
  Pass(absl::Seconds(9));
  EXPECT_EQ(Frames(), "");
  Pass(absl::Seconds(1));
  EXPECT_EQ(Frames(), "failed DEADLINE");
  EXPECT_EQ(Events(), "");
  ExpectQuiet();
}

TEST_F(PrefillCoreTest, I7_ADuplicateIsRefusedAndTheFirstGoesOn) {
  Open();
  Open();
  Open(0);
  GetGrant();
  Open(1);
  Clear();
  GetGrant();
  GetGrant(1, kOtherPeer);
  EXPECT_EQ(Frames(), "refused #2 DUPLICATE_ROOM; refused #3 DUPLICATE_ROOM");
  SendAll(), TakeAll();
  EXPECT_EQ(Events(), "event TRANSFERRING; event SUCCESS drained");
  EXPECT_EQ(ports_.probe.commands_refused[Reason::kDuplicateRoom], 3);
  ExpectQuiet();
}

TEST_F(PrefillCoreTest, I5_FramesOfAnotherAttemptOrPeerChangeNothing) {
  Open(), GetGrant(2), SendAll();
  Clear();
  TakeAll(1);
  Hear(Taken{.room = Key(9, 2), .pages = 2, .bytes = ByteCount(64), .complete = true}, kOtherPeer);
  Hear(Abort{.room = Key(9, 2), .error = absl::AbortedError("")}, kOtherPeer);
  Hear(Abort{.room = Key(9, 1), .error = absl::AbortedError("")});
  GetGrant(1);
  EXPECT_EQ(Events(), "");
  EXPECT_EQ(Frames(),
            "refused #2 ROOM_NOT_FOUND; refused #3 ROOM_NOT_FOUND; abort_reply drained unknown; "
            "abort_reply drained unknown; refused #6 STALE_ATTEMPT");
  TakeAll(2);
  EXPECT_EQ(Events(), "event SUCCESS drained");
}

TEST_F(PrefillCoreTest, AHigherAttemptEndsTheLower) {
  Open(), GetGrant(1), SendAll();
  Clear();
  GetGrant(2);
  EXPECT_EQ(Events(), "event FAILED STALE_ATTEMPT; event FAILED STALE_ATTEMPT drained");
  EXPECT_EQ(Frames(), "failed STALE_ATTEMPT");
  EXPECT_TRUE(ports_.seals.whole.empty());
  Open(2);
  EXPECT_EQ(Events(), "event WAITING_FOR_INPUT; prefix 0+2");
  SendAll(2), TakeAll(2);
  EXPECT_EQ(Events(), "event TRANSFERRING; event SUCCESS drained");
  Open(1);
  EXPECT_EQ(Events(), "refused open_send STALE_ATTEMPT");
  ExpectQuiet();
}

TEST_F(PrefillCoreTest, AHigherOpenSendEndsTheLowerToo) {
  Open(1), GetGrant(1);
  Clear();
  Open(2);
  EXPECT_EQ(Events(),
            "event FAILED STALE_ATTEMPT; event FAILED STALE_ATTEMPT drained; event BOOTSTRAPPING");
  GetGrant(2);
  EXPECT_EQ(Events(), "event WAITING_FOR_INPUT; prefix 0+2");
}

TEST_F(PrefillCoreTest, WrongCapabilityIsRefusedAndTheRoomWaitsOn) {
  Open(0, "secret");
  for (const char* bad : {"", "secres", "secre", "secret1"}) {
    Clear();
    GetGrant(1, kPeer, bad);
    EXPECT_EQ(ports_.peers.All<Refused>().size(), 1u);
    EXPECT_THAT(ports_.peers.All<Refused>()[0].error,
                StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadCapability));
    EXPECT_EQ(Events(), "");
  }
  GetGrant(1, kPeer, "secret");
  EXPECT_EQ(Events(), "event WAITING_FOR_INPUT; prefix 0+2");
}

TEST_F(PrefillCoreTest, AHeldGrantOfWrongCapabilityIsRefusedWhenTheSendComes) {
  GetGrant(1, kPeer, "guess");
  Open(0, "secret");
  EXPECT_EQ(Frames(), "refused #1 BAD_CAPABILITY");
  EXPECT_EQ(Events(), "event BOOTSTRAPPING");
  GetGrant(1, kOtherPeer, "secret");
  EXPECT_EQ(Events(), "event WAITING_FOR_INPUT; prefix 0+2");
  EXPECT_EQ(core_->RoomsOfPeer(kPeer), 0);
  EXPECT_EQ(core_->RoomsOfPeer(kOtherPeer), 1);
}

TEST_F(PrefillCoreTest, AGrantWithAHigherAttemptCannotEndARoomWithoutItsCapability) {
  Open(0, "secret"), GetGrant(1, kPeer, "secret");
  Clear();
  GetGrant(2, kOtherPeer, "guess");
  EXPECT_EQ(Events(), "");
  EXPECT_EQ(Frames(), "refused #2 BAD_CAPABILITY");
}

TEST_F(PrefillCoreTest, I4_ARoomThatEndedBeforeItsGrantAnswersIt) {
  struct Row {
    std::string name;
    std::function<void()> end;
    std::string answer;
  };
  const std::vector<Row> table = {
      {"opened and aborted", [&] { Open(), Say(AbortCommand{.room = Key(9, 0)}); },
       "failed PEER_ABORTED"},
      {"opened and failed",
       [&] { Open(), Say(FailCommand{.room = Key(9, 0), .detail = "too long"}); },
       "failed PEER_ENGINE_FAILED"},
      {"opened by number", [&] { Open(1), Say(AbortCommand{.room = Key(9, 1)}); },
       "failed PEER_ABORTED"},
      {"never opened", [&] { Say(FailCommand{.room = Key(9, 0)}); }, "failed PEER_ENGINE_FAILED"},
      {"deadline", [&] { Open(), Pass(absl::Seconds(30)); }, "failed DEADLINE"},
      {"bad chunk", [&] { Open(), Say(SendChunk{.room = Key(9, 0), .runs = {{-1, 1}}}); },
       "failed BAD_PAGES"},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(row.name);
    Make(Role::kPrefill, {});
    row.end();
    EXPECT_THAT(Events(), testing::EndsWith(" drained"));
    EXPECT_EQ(Frames(), "");
    GetGrant(1);
    EXPECT_EQ(Frames(), row.answer);
    sequence_ = 0;
    GetGrant(1);  // bound: the answer is given once
    EXPECT_EQ(Frames(), "refused #1 STALE_ATTEMPT");
    EXPECT_EQ(Events(), "");
    ExpectQuiet();
  }
}

TEST_F(PrefillCoreTest, AbortOfAHeldGrantTellsBothSides) {
  GetGrant();
  Say(AbortCommand{.room = Key(9, 0), .detail = "client left"});
  EXPECT_EQ(Events(), "event FAILED ABORTED; event FAILED ABORTED drained");
  EXPECT_EQ(MetadataOf(ports_.peers.All<Failed>().at(0).error).at("detail"), "client left");
  ExpectQuiet();
}

TEST_F(PrefillCoreTest, AbortFrameEndsTheRoomAndIsAnswered) {
  Open(), GetGrant(), SendAll();
  Clear();
  Hear(Abort{.room = Key(9, 1), .error = AbortedByEngine("retracted").tell});
  EXPECT_EQ(Events(), "event FAILED PEER_ABORTED; event FAILED PEER_ABORTED drained");
  EXPECT_EQ(Frames(), "abort_reply drained");
  EXPECT_TRUE(ports_.seals.whole.empty());
  Hear(Abort{.room = Key(9, 1), .error = AbortedByEngine("").tell});
  EXPECT_EQ(Frames(), "abort_reply drained");
  Hear(Abort{.room = Key(77, 1), .error = AbortedByEngine("").tell});
  EXPECT_EQ(Frames(), "abort_reply drained unknown");
  ExpectQuiet();
}

TEST_F(PrefillCoreTest, I3_NothingChangesAfterTheEnd) {
  Open(), GetGrant(), SendAll(), TakeAll();
  Clear();
  TakeAll();
  SendAll();
  SendAll(1);
  Say(AbortCommand{.room = Key(9, 1)});
  Say(AbortCommand{.room = Key(9, 0)});
  Hear(Refused{.room = Key(9, 1), .error = absl::NotFoundError("")});
  Pass(absl::Seconds(60));
  EXPECT_EQ(Events(), "");
  EXPECT_EQ(Frames(), "");
  GetGrant(1);
  EXPECT_EQ(Frames(), "refused #5 STALE_ATTEMPT");
}

TEST_F(PrefillCoreTest, ClosedRoomsAreHiddenButRemembered) {
  Open(), GetGrant();
  Say(CloseRoom{.room = Key(9, 1)});
  EXPECT_THAT(Events(), testing::EndsWith("refused close_room IN_USE"));
  SendAll(), TakeAll();
  Clear();
  EXPECT_THAT(core_->GetRoom(Key(9, 1), now_), IsOk());
  Say(CloseRoom{.room = Key(9, 1)});
  EXPECT_THAT(core_->GetRoom(Key(9, 1), now_), HasReason(Reason::kRoomNotFound));
  EXPECT_TRUE(core_->ListRooms(std::nullopt, 10, now_).empty());
  GetGrant(1);
  EXPECT_EQ(Frames(), "refused #3 STALE_ATTEMPT");
}

TEST_F(PrefillCoreTest, RefusedOfferEndsTheRoom) {
  Open(), GetGrant(), SendAll();
  Clear();
  Hear(Refused{.room = Key(9, 1), .error = RoomNotFound(Key(9, 1))});
  EXPECT_EQ(Events(), "event FAILED ROOM_NOT_FOUND; event FAILED ROOM_NOT_FOUND drained");
  EXPECT_EQ(Frames(), "");
}

TEST_F(PrefillCoreTest, PeerDownFailsItsRoomsOnly) {
  Open(), GetGrant();
  Open(0, "", 10), Hear(MakeGrant(1, 10), kOtherPeer);
  Clear();
  core_->OnPeerDown(kPeer, absl::UnavailableError("dead"), now_);
  EXPECT_EQ(Events(), "engine_lost decode; event FAILED PEER_LOST; event FAILED PEER_LOST drained");
  EXPECT_EQ(core_->LiveRooms(), 1);
  core_->OnPeerDown(kPeer, absl::UnavailableError("dead"), now_);
  Hear(MakeGrant(2, 11), kPeer);
  EXPECT_EQ(Events() + Frames(), "");
}

TEST_F(PrefillCoreTest, EngineGoneFailsAllAndGrantsAreRefusedUntilItIsBack) {
  Open(), GetGrant(), SendAll();
  Hear(MakeGrant(1, 10));
  Clear();
  core_->OnEngineGone(absl::CancelledError("stream closed"), now_);
  EXPECT_EQ(Frames(), "failed ENGINE_LOST; failed ENGINE_LOST");
  ExpectQuiet();
  Hear(MakeGrant(1, 12));
  EXPECT_EQ(Frames(), "refused #3 ENGINE_LOST");
  core_->OnEngineUp();
  Hear(MakeGrant(1, 12));
  EXPECT_EQ(Frames(), "");
}

}  // namespace
}  // namespace pageferry::agent
