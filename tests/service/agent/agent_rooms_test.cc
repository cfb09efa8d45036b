// Rooms between two agents: real servers, real shared memory, bytes verified.

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/service/agent/agent_fixture.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::agent {
namespace {

using Runs = std::vector<std::pair<int64_t, int64_t>>;
using ::testing::HasSubstr;

Reason ReasonIn(const pb::RoomEvent& event) { return ReasonOf(FromErrorDetail(event.error())); }

/// Whatever the pages travel by.
class RoomsTest : public PairTest, public testing::WithParamInterface<std::string> {
 protected:
  AgentOptions OptionsOf(const std::string& name) const override {
    AgentOptions options = AgentTest::OptionsOf(name);
    options.transports = {GetParam()};
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, RoomsTest, testing::Values("local", "tcp"),
                         [](const auto& way) { return way.param; });

TEST_P(RoomsTest, MovesARoomThatWasSentBeforeItsGrant) {
  const Runs source = {{5, 3}, {20, 2}};
  const Runs target = {{40, 1}, {10, 4}};
  FillSource(11, source, 2);
  ClearTarget();
  prefill_->Send(OpenSendOf(11));
  prefill_->Send(ChunkOf(11, source, 0, true, 2));
  decode_->Send(OpenReceiveOf(11, target, 5));

  const auto received = decode_->WaitForEnd(11);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->state(), pb::ROOM_STATE_SUCCESS) << received->ShortDebugString();
  EXPECT_EQ(received->pages(), 5);
  EXPECT_EQ(received->bytes(), int64_t{5} * kEntries * kPageBytes + kSlotBytes);
  EXPECT_EQ(received->transport(), GetParam());
  EXPECT_TRUE(received->has_since_grant());
  EXPECT_TRUE(TargetHolds(11, target, 5));
  const auto sent = prefill_->WaitForEnd(11);
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(sent->state(), pb::ROOM_STATE_SUCCESS) << sent->ShortDebugString();
}

TEST_P(RoomsTest, MovesARoomThatWasGrantedBeforeItWasSentInChunks) {
  const Runs target = {{0, 6}};
  FillSource(12, {{30, 6}}, 0);
  ClearTarget();
  decode_->Send(OpenReceiveOf(12, target, 1));
  prefill_->Send(OpenSendOf(12));
  const auto known = prefill_->WaitFor([](const auto& e) { return e.has_prefix_known(); });
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->prefix_known().granted_pages(), 6);
  prefill_->Send(ChunkOf(12, {{30, 2}}, 0, false, -1));
  prefill_->Send(ChunkOf(12, {{32, 3}}, 2, false, -1));
  prefill_->Send(ChunkOf(12, {{35, 1}}, 5, true, 0));
  const auto received = decode_->WaitForEnd(12);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->state(), pb::ROOM_STATE_SUCCESS) << received->ShortDebugString();
  EXPECT_TRUE(TargetHolds(12, target, 1));
}

TEST_P(RoomsTest, SendsOnlyWhatIsBehindTheCachedPrefix) {
  const Runs target = {{8, 2}};
  FillSource(13, {{30, 5}}, 3);
  ClearTarget();
  decode_->Send(OpenReceiveOf(13, target, 3, /*prefix=*/3));
  prefill_->Send(OpenSendOf(13));
  prefill_->Send(ChunkOf(13, {{30, 5}}, 0, true, 3));
  const auto received = decode_->WaitForEnd(13);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->state(), pb::ROOM_STATE_SUCCESS) << received->ShortDebugString();
  EXPECT_EQ(received->pages(), 2);
  EXPECT_TRUE(TargetHolds(13, target, 3, 3));
}

TEST_P(RoomsTest, MovesManyRoomsOverOneSession) {
  constexpr int64_t kRooms = 12;
  ClearTarget();
  for (int64_t i = 0; i < kRooms; ++i) FillSource(100 + i, {{5 * i, 5}}, i);
  for (int64_t i = 0; i < kRooms; ++i) {
    prefill_->Send(OpenSendOf(100 + i));
    decode_->Send(OpenReceiveOf(100 + i, {{5 * (kRooms - 1 - i), 5}}, i));
  }
  for (int64_t i = kRooms - 1; i >= 0; --i) {
    prefill_->Send(ChunkOf(100 + i, {{5 * i, 5}}, 0, true, i));
  }
  for (int64_t i = 0; i < kRooms; ++i) {
    const auto received = decode_->WaitForEnd(100 + i);
    ASSERT_TRUE(received.has_value());
    EXPECT_EQ(received->state(), pb::ROOM_STATE_SUCCESS) << received->ShortDebugString();
    EXPECT_TRUE(TargetHolds(100 + i, {{5 * (kRooms - 1 - i), 5}}, i)) << i;
    ASSERT_TRUE(prefill_->WaitForEnd(100 + i).has_value());
  }
  ASSERT_OK_AND_ASSIGN(const pb::GetAgentResponse agent, decode_->GetAgent());
  ASSERT_EQ(agent.sessions_size(), 1);
  EXPECT_EQ(agent.sessions(0).transport(), GetParam());
  EXPECT_TRUE(agent.sessions(0).dialled());
  EXPECT_EQ(agent.sessions(0).room_count(), 0);
  for (const auto& [kind, count] : agent.ledger()) {
    if (kind != "tombstones") {
      EXPECT_EQ(count, 0) << kind;
    }
  }
  EXPECT_THAT(
      decode_agent_->Metrics(),
      HasSubstr("pageferry_agent_rooms_ended_total{reason=\"SUCCESS\",role=\"decode\"} 12"));
}

TEST_P(RoomsTest, AbortAtDecodeIsToldAtPrefill) {
  decode_->Send(OpenReceiveOf(21, {{0, 4}}, 0));
  prefill_->Send(OpenSendOf(21));
  ASSERT_TRUE(prefill_->WaitFor([](const auto& e) { return e.has_prefix_known(); }).has_value());
  decode_->Send(AbortOf(21));
  const auto failed = decode_->WaitForFailure(21);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(ReasonIn(*failed), Reason::kAborted);
  const auto peer = prefill_->WaitForFailure(21);
  ASSERT_TRUE(peer.has_value());
  EXPECT_EQ(ReasonIn(*peer), Reason::kPeerAborted);
  EXPECT_TRUE(peer->drained() || prefill_->WaitForEnd(21).has_value());
  EXPECT_TRUE(failed->drained() || decode_->WaitForEnd(21).has_value());
}

TEST_P(RoomsTest, AbortAtPrefillIsToldAtDecode) {
  decode_->Send(OpenReceiveOf(22, {{0, 4}}, 0));
  prefill_->Send(OpenSendOf(22));
  ASSERT_TRUE(prefill_->WaitFor([](const auto& e) { return e.has_prefix_known(); }).has_value());
  prefill_->Send(AbortOf(22));
  const auto failed = prefill_->WaitForFailure(22);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(ReasonIn(*failed), Reason::kAborted);
  const auto peer = decode_->WaitForFailure(22);
  ASSERT_TRUE(peer.has_value());
  EXPECT_EQ(ReasonIn(*peer), Reason::kPeerAborted);
  EXPECT_TRUE(peer->drained() || decode_->WaitForEnd(22).has_value());
}

TEST_P(RoomsTest, OperatorAbortsARoom) {
  decode_->Send(OpenReceiveOf(23, {{0, 4}}, 0));
  ASSERT_TRUE(Eventually([&] { return decode_->GetRoom(23).ok(); }));
  ASSERT_OK_AND_ASSIGN(const pb::AbortRoomResponse aborted, decode_->AbortRoom(23));
  EXPECT_EQ(aborted.room().state(), pb::ROOM_STATE_FAILED);
  const auto failed = decode_->WaitForFailure(23);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(ReasonIn(*failed), Reason::kOperatorAborted);
  EXPECT_THAT(decode_->AbortRoom(99), StatusIs(absl::StatusCode::kNotFound, Reason::kRoomNotFound));
  EXPECT_THAT(decode_->GetRoom(99), StatusIs(absl::StatusCode::kNotFound, Reason::kRoomNotFound));
}

TEST_P(RoomsTest, LossOfTheEngineAbortsItsRooms) {
  decode_->Send(OpenReceiveOf(24, {{0, 4}}, 0));
  prefill_->Send(OpenSendOf(24));
  ASSERT_TRUE(prefill_->WaitFor([](const auto& e) { return e.has_prefix_known(); }).has_value());
  prefill_->CancelSession();
  const auto failed = decode_->WaitForFailure(24);
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(ReasonIn(*failed), ::testing::AnyOf(Reason::kEngineLost, Reason::kPeerAborted));
  EXPECT_TRUE(failed->drained() || decode_->WaitForEnd(24).has_value());

  // It comes back: the same registration, a new session, a new room.
  ASSERT_THAT(prefill_->Register(EngineOf("prefill-0", topology_pb::ROLE_PREFILL)), IsOk());
  prefill_->Open("prefill-0");
  FillSource(25, {{7, 4}}, 1);
  prefill_->Send(OpenSendOf(25));
  prefill_->Send(ChunkOf(25, {{7, 4}}, 0, true, 1));
  decode_->Send(OpenReceiveOf(25, {{50, 4}}, 1));
  const auto received = decode_->WaitForEnd(25);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->state(), pb::ROOM_STATE_SUCCESS) << received->ShortDebugString();
  EXPECT_TRUE(TargetHolds(25, {{50, 4}}, 1));
}

TEST_P(RoomsTest, LossOfThePeerFailsItsRooms) {
  decode_->Send(OpenReceiveOf(26, {{0, 4}}, 0));
  prefill_->Send(OpenSendOf(26));
  ASSERT_TRUE(prefill_->WaitFor([](const auto& e) { return e.has_prefix_known(); }).has_value());
  prefill_agent_->Stop(absl::ZeroDuration());
  const auto failed = decode_->WaitForFailure(26);
  ASSERT_TRUE(failed.has_value());
  EXPECT_TRUE(failed->drained() || decode_->WaitForEnd(26).has_value());
}

TEST_P(RoomsTest, RoomsGoOnWhileBootstrapIsAway) {
  decode_->Send(OpenReceiveOf(31, {{0, 4}}, 0));
  prefill_->Send(OpenSendOf(31));
  prefill_->Send(ChunkOf(31, {{0, 4}}, 0, true, 0));
  ASSERT_TRUE(decode_->WaitForEnd(31).has_value());
  ASSERT_OK_AND_ASSIGN(const pb::GetAgentResponse before, decode_->GetAgent());
  StopBootstrap();
  ASSERT_TRUE(Eventually([&] {
    const auto agent = decode_->GetAgent();
    return agent.ok() && !agent->lease().live();
  }));
  FillSource(32, {{9, 3}}, 4);
  prefill_->Send(OpenSendOf(32));
  prefill_->Send(ChunkOf(32, {{9, 3}}, 0, true, 4));
  decode_->Send(OpenReceiveOf(32, {{60, 3}}, 4));
  const auto received = decode_->WaitForEnd(32);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->state(), pb::ROOM_STATE_SUCCESS) << received->ShortDebugString();
  EXPECT_TRUE(TargetHolds(32, {{60, 3}}, 4));

  // Back, and empty: the cells are claimed again with the epochs that they had.
  StartBootstrap();
  ASSERT_TRUE(Eventually([&] {
    const auto agent = decode_->GetAgent();
    return agent.ok() && agent->lease().live();
  }));
  ASSERT_OK_AND_ASSIGN(const pb::GetAgentResponse agent, decode_->GetAgent());
  EXPECT_EQ(agent.agent().epoch(), before.agent().epoch());
}

TEST_P(RoomsTest, AnotherShapeIsRefusedNamingTheSizes) {
  ASSERT_OK_AND_ASSIGN(Agent wide, StartAgent("wide"));
  TestEngine engine(engine_socket("wide"));
  ASSERT_OK_AND_ASSIGN(const MappedPool pool, engine.CreatePool("kv", kPoolBytes));
  static_cast<void>(pool);
  pb::RegisterEngineRequest request = EngineOf("wide-0", topology_pb::ROLE_DECODE);
  request.mutable_shape()->set_tp(2);
  request.mutable_profile()->set_total_kv_heads(4);
  ASSERT_THAT(engine.Register(request), IsOk());
  engine.Open("wide-0");
  engine.Send(OpenReceiveOf(41, {{0, 1}}, 0));
  const auto failed = engine.WaitForFailure(41);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->error().code(), static_cast<int>(absl::StatusCode::kUnimplemented));
  EXPECT_EQ(ReasonIn(*failed), Reason::kUnsupported);
  EXPECT_EQ(failed->error().metadata().at("prefill_shape"), "dp1 cp1 tp1 pp1");
  EXPECT_EQ(failed->error().metadata().at("decode_shape"), "dp1 cp1 tp2 pp1");
}

TEST_P(RoomsTest, UnknownPrefillEngineIsNamed) {
  pb::EngineCommand command = OpenReceiveOf(42, {{0, 1}}, 0);
  command.mutable_open_receive()->set_prefill_engine_id("nobody");
  command.mutable_open_receive()->mutable_timeout()->set_seconds(2);
  decode_->Send(command);
  const auto failed = decode_->WaitForFailure(42);
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(ReasonIn(*failed), ::testing::AnyOf(Reason::kEngineNotFound, Reason::kDeadline));
}

TEST_P(RoomsTest, BadCommandsAreRefusedAndEndNothing) {
  pb::EngineCommand bad = OpenReceiveOf(51, {{0, 4}}, 0);
  bad.mutable_open_receive()->set_priority(1000);
  decode_->Send(bad);
  const auto refused = decode_->WaitFor([](const auto& e) { return e.has_refused(); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->refused().room().room_id(), 51);
  EXPECT_EQ(refused->refused().command(), "open_receive");
  EXPECT_EQ(refused->refused().error().metadata().at("field"), "priority");

  pb::EngineCommand recompute;
  recompute.mutable_request_recompute()->mutable_room()->set_room_id(52);
  decode_->Send(recompute);
  const auto unsupported = decode_->WaitFor([](const auto& e) { return e.has_refused(); });
  ASSERT_TRUE(unsupported.has_value());
  EXPECT_EQ(ReasonOf(FromErrorDetail(unsupported->refused().error())), Reason::kUnsupported);

  FillSource(53, {{7, 4}}, 1);
  prefill_->Send(OpenSendOf(53));
  prefill_->Send(ChunkOf(53, {{7, 4}}, 0, true, 1));
  decode_->Send(OpenReceiveOf(53, {{50, 4}}, 1));
  const auto received = decode_->WaitForEnd(53);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->state(), pb::ROOM_STATE_SUCCESS);
}

TEST_P(RoomsTest, ListsEveryRoomOnceWhateverThePageAndTheState) {
  // Ten that only prefill knows, and among them five that wait for pages.
  for (int64_t room = 0; room < 15; ++room) {
    prefill_->Send(OpenSendOf(room));
    if (room % 3 != 1) continue;
    decode_->Send(OpenReceiveOf(room, {{room, 1}}, -1));
  }
  const auto list = [&](int page_size, std::optional<pb::RoomState> state) {
    std::vector<int64_t> found;
    pb::ListRoomsRequest request;
    request.set_page_size(page_size);
    if (state.has_value()) request.add_states(*state);
    do {
      const auto page = prefill_->ListRooms(request);
      EXPECT_THAT(page, IsOk());
      if (!page.ok()) break;
      for (const auto& room : page->rooms()) found.push_back(room.room().room_id());
      request.set_page_token(page->next_page_token());
    } while (!request.page_token().empty());
    return found;
  };
  const std::vector<int64_t> waiting = {1, 4, 7, 10, 13};
  ASSERT_TRUE(Eventually(
      [&] { return list(100, pb::ROOM_STATE_WAITING_FOR_INPUT).size() == waiting.size(); }));
  for (const int page_size : {1, 2, 3, 4, 7, 15, 100}) {
    EXPECT_EQ(list(page_size, std::nullopt).size(), 15) << page_size;
    EXPECT_EQ(list(page_size, pb::ROOM_STATE_WAITING_FOR_INPUT), waiting) << page_size;
  }
}

TEST_P(RoomsTest, OperatorsLearnWhomARoomWaitsForAndWhatTheyAskedWrong) {
  pb::EngineCommand command = OpenReceiveOf(70, {{0, 1}}, -1);
  command.mutable_open_receive()->set_prefill_engine_id("not-there-yet");
  decode_->Send(command);
  ASSERT_TRUE(Eventually([&] { return decode_->GetRoom(70).ok(); }));
  ASSERT_OK_AND_ASSIGN(const pb::GetRoomResponse waiting, decode_->GetRoom(70));
  EXPECT_EQ(waiting.room().peer_engine_id(), "not-there-yet");
  EXPECT_FALSE(waiting.room().has_peer());

  pb::ListRoomsRequest request;
  request.add_states(pb::ROOM_STATE_UNSPECIFIED);
  EXPECT_THAT(decode_->ListRooms(request),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownEnum));
  request.set_states(0, static_cast<pb::RoomState>(77));
  EXPECT_THAT(decode_->ListRooms(request),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownEnum));
  request.mutable_states()->Resize(17, pb::ROOM_STATE_FAILED);
  request.set_states(0, pb::ROOM_STATE_FAILED);
  EXPECT_THAT(decode_->ListRooms(request),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kTooLarge));
}

TEST_P(RoomsTest, ChecksumsAreRefusedAndNotForgotten) {
  pb::EngineCommand command = OpenReceiveOf(3, {{0, 1}}, -1);
  command.mutable_open_receive()->set_checksum(true);
  decode_->Send(command);
  const auto refused =
      decode_->WaitFor([](const pb::AgentEvent& event) { return event.has_refused(); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(ReasonOf(FromErrorDetail(refused->refused().error())), Reason::kUnsupported);
}

TEST_P(RoomsTest, DrainLetsRoomsEndAndTakesNoNewOnes) {
  FillSource(61, {{7, 4}}, 1);
  decode_->Send(OpenReceiveOf(61, {{50, 4}}, 1));
  prefill_->Send(OpenSendOf(61));
  ASSERT_TRUE(prefill_->WaitFor([](const auto& e) { return e.has_prefix_known(); }).has_value());
  decode_->Send(OpenReceiveOf(62, {{40, 4}}, 2));
  ASSERT_TRUE(Eventually([&] { return decode_->GetRoom(62).ok(); }));
  TestEngine operations(engine_socket("decode"));
  std::optional<absl::StatusOr<pb::DrainResponse>> drained;
  std::jthread drain([&] { drained = operations.Drain(absl::Seconds(2)); });
  ASSERT_TRUE(decode_
                  ->WaitFor([](const auto& e) {
                    return e.has_agent_state() &&
                           e.agent_state().state() == pb::AGENT_STATE_DRAINING;
                  })
                  .has_value());
  decode_->Send(OpenReceiveOf(63, {{30, 1}}, 3));
  prefill_->Send(ChunkOf(61, {{7, 4}}, 0, true, 1));
  const auto received = decode_->WaitForEnd(61);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->state(), pb::ROOM_STATE_SUCCESS) << received->ShortDebugString();
  const auto refused = decode_->WaitFor([](const auto& e) { return e.has_refused(); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->refused().room().room_id(), 63);
  EXPECT_EQ(ReasonOf(FromErrorDetail(refused->refused().error())), Reason::kDraining);
  drain.join();
  ASSERT_TRUE(drained.has_value());
  ASSERT_THAT(*drained, IsOk());
  EXPECT_EQ((*drained)->finished_count(), 1);
  EXPECT_EQ((*drained)->aborted_count(), 1);
}

}  // namespace
}  // namespace pageferry::agent
