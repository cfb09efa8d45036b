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

TEST_F(PrefillCoreTest, DrainRefusesNewRoomsAndFinishesOldOnes) {
  Open();
  Hear(MakeGrant(1, 10));
  Clear();
  core_->StartDrain();
  GetGrant();
  Open(0, "", 10);
  EXPECT_EQ(Frames(), "");
  Open(0, "", 11);
  Hear(MakeGrant(1, 12));
  EXPECT_EQ(Frames(), "refused #3 DRAINING");
  EXPECT_THAT(Events(), testing::EndsWith("refused open_send DRAINING"));
}

TEST_F(PrefillCoreTest, I9_RoomsAreBoundedWithBackpressure) {
  CoreLimits limits;
  limits.max_rooms = 10;
  limits.max_rooms_of_peer = 6;
  Make(Role::kPrefill, limits);
  for (int64_t room = 1; room <= 8; ++room) Hear(MakeGrant(1, room));
  EXPECT_EQ(core_->RoomsOfPeer(kPeer), 6);
  EXPECT_EQ(Frames(), "refused #7 LIMIT_REACHED; refused #8 LIMIT_REACHED");
  for (int64_t room = 20; room < 25; ++room) Open(0, "", room);
  EXPECT_EQ(Events(),
            "event BOOTSTRAPPING; event BOOTSTRAPPING; backpressure on; event BOOTSTRAPPING; "
            "event BOOTSTRAPPING; refused open_send LIMIT_REACHED");
  Say(AbortCommand{.room = Key(20, 0)});
  Clear();
  Say(AbortCommand{.room = Key(21, 0)});
  EXPECT_THAT(Events(), testing::EndsWith("drained; backpressure off"));
  Pass(absl::Seconds(60));
  ExpectQuiet();
}

TEST_F(PrefillCoreTest, I6_HostileGrantsAreRefused) {
  struct Row {
    std::string name;
    std::function<void(Grant&)> change;
    Reason reason;
  };
  const std::vector<Row> table = {
      {"attempt 0", [](Grant& g) { g.room.attempt = Attempt(0); }, Reason::kInvalidField},
      {"attempt -1", [](Grant& g) { g.room.attempt = Attempt(-1); }, Reason::kInvalidField},
      {"prefix", [](Grant& g) { g.cached_prefix_pages = -1; }, Reason::kInvalidField},
      {"page outside", [](Grant& g) { g.runs = {{kPages - 1, 2}}; }, Reason::kBadPages},
      {"page twice", [](Grant& g) { g.runs = {{1, 2}, {1, 1}}; }, Reason::kBadPages},
      {"overflow", [](Grant& g) { g.runs = {{INT64_MAX, INT64_MAX}}; }, Reason::kBadPages},
      {"aux", [](Grant& g) { g.aux_slot = kSlots; }, Reason::kInvalidField},
      {"aux -2", [](Grant& g) { g.aux_slot = -2; }, Reason::kInvalidField},
      {"component", [](Grant& g) { g.states = {{1, {0}}}; }, Reason::kInvalidField},
      {"component twice", [](Grant& g) { g.states = {{0, {0}}, {0, {1}}}; }, Reason::kInvalidField},
      {"index", [](Grant& g) { g.states = {{0, {kStateItems}}}; }, Reason::kInvalidField},
      {"dummy with pages", [](Grant& g) { g.dummy = true; }, Reason::kInvalidField},
      {"many ranks", [](Grant& g) { g.decode_rank_count = 2; }, Reason::kUnsupported},
      {"no ranks", [](Grant& g) { g.decode_rank_count = 0; }, Reason::kUnsupported},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(row.name);
    Clear();
    Grant grant = MakeGrant();
    row.change(grant);
    Hear(std::move(grant));
    ASSERT_EQ(ports_.peers.All<Refused>().size(), 1u);
    EXPECT_THAT(ports_.peers.All<Refused>()[0].error, HasReason(row.reason));
    ExpectQuiet();
  }
  // Bounds at their end are good, and a prefix that cannot be reached only waits.
  Clear();
  Hear(Grant{.room = Key(9, INT64_MAX),
             .runs = {{0, kPages}},
             .aux_slot = kSlots - 1,
             .cached_prefix_pages = INT64_MAX,
             .timeout = absl::InfiniteDuration()});
  Open();
  EXPECT_EQ(Frames(), "");
  Say(SendChunk{.room = Key(9, 0), .runs = {{0, 2}}, .first_position = INT64_MAX - 1});
  EXPECT_EQ(core_->LiveRooms(), 1);
}

TEST_F(PrefillCoreTest, CommandsForUnknownRoomsAreRefused) {
  Say(SendChunk{.room = Key(5, 0)});
  Say(OpenReceive{.room = Key(5, 1)});
  EXPECT_EQ(Events(), "refused send_chunk ROOM_NOT_FOUND; refused open_receive INVALID_FIELD");
  AgentCore bare({}, ports_.Get());
  bare.OnEngineCommand(OpenSend{.room = Key(1, 0)}, now_);
  EXPECT_EQ(Events(), "refused open_send ENGINE_NOT_REGISTERED");
}

TEST_F(PrefillCoreTest, GrantsOfSourceDrivenSessionsAreUnsupportedSoFar) {
  PeerInfo info = TestPeer(Role::kPrefill, "rdma");
  info.driver = transport::Driver::kSource;
  core_->OnPeerUp(PeerId(12), info, now_);
  Hear(MakeGrant(), PeerId(12));
  EXPECT_EQ(Frames(), "refused #1 UNSUPPORTED");
}

TEST_F(PrefillCoreTest, OperatorsSeeAndAbort) {
  Open(0, "", 1), Open(0, "", 2), Hear(MakeGrant(4, 2)), Open(0, "", 3);
  Say(AbortCommand{.room = Key(3, 0)});
  Pass(absl::Seconds(2));
  std::vector<RoomView> rooms = core_->ListRooms(std::nullopt, 2, now_);
  ASSERT_EQ(rooms.size(), 2u);
  EXPECT_EQ(rooms[0].room, Key(1, 0));
  EXPECT_EQ(rooms[1].room, Key(2, 4));
  EXPECT_EQ(rooms[1].pages_granted, 2);
  rooms = core_->ListRooms(rooms[1].room, 2, now_);
  ASSERT_EQ(rooms.size(), 1u);
  EXPECT_TRUE(rooms[0].drained);
  EXPECT_EQ(rooms[0].waiting_time, absl::Seconds(2));
  Clear();
  EXPECT_THAT(core_->AbortRoom(Key(2, 0), "why not", now_), IsOk());
  EXPECT_EQ(Events(), "event FAILED OPERATOR_ABORTED; event FAILED OPERATOR_ABORTED drained");
  EXPECT_EQ(Frames(), "failed OPERATOR_ABORTED");
  EXPECT_THAT(core_->AbortRoom(Key(2, 0), "", now_),
              StatusIs(absl::StatusCode::kNotFound, Reason::kRoomNotFound));
  ASSERT_OK_AND_ASSIGN(const RoomView view, core_->GetRoom(Key(2, 0), now_));
  EXPECT_THAT(view.error, HasReason(Reason::kOperatorAborted));
  EXPECT_EQ((core_->RoomsByState()[{Role::kPrefill, RoomState::kBootstrapping}]), 1);
}

TEST_F(PrefillCoreTest, I9_TombstonesAreBoundedInNumberAndTime) {
  CoreLimits limits;
  limits.max_tombstones = 3;
  limits.tombstone_ttl = absl::Seconds(100);
  Make(Role::kPrefill, limits);
  for (int64_t room = 1; room <= 5; ++room) {
    Open(0, "", room);
    Say(AbortCommand{.room = Key(room, 0)});
  }
  EXPECT_EQ(core_->Ledger().at("tombstones"), 3);
  Pass(absl::Seconds(99));
  EXPECT_EQ(core_->Ledger().at("tombstones"), 3);
  Pass(absl::Seconds(1));
  EXPECT_EQ(core_->Ledger().at("tombstones"), 0);
  EXPECT_EQ(core_->NextDeadline(), MonotonicTime::InfiniteFuture());
}

}  // namespace
}  // namespace pageferry::agent
