// The engine of an agent: pools, registration and sessions, with a core whose outside is fake.
#include "tests/unit/transfer-agent/engine_host_fixture.h"

namespace pageferry::agent {
namespace {

TEST_F(EngineHostTest, I1_ASessionOpensOnlyWhenNoCopyOfTheOneBeforeRuns) {
  const auto first = Begin(Role::kDecode);
  ASSERT_TRUE(first->opened());
  EXPECT_EQ(first->reads, 1);
  StartCopy();
  host_.OnStreamEnded(first, kCut);
  RunAll();

  // The engine was started anew, and its agent still copies a slice into its pages.
  EXPECT_THAT(CreatePool(), IsOk());
  EXPECT_THAT(Register(Role::kDecode), IsOk());
  const auto second = Open(Role::kDecode);
  EXPECT_FALSE(second->opened());
  EXPECT_EQ(second->reads, 0);
  EXPECT_FALSE(host_.session_open());
  const auto third = Open(Role::kDecode);
  ASSERT_TRUE(third->end.has_value());
  EXPECT_THAT(*third->end,
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kEngineAlreadyRegistered));
  EXPECT_THAT(host_.ReleasePool("pool"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));

  core_.OnMoveDone(ports_.mover.running.begin()->first, absl::CancelledError("cut"), loop_.Now());
  RunAll();
  EXPECT_TRUE(second->opened());
  EXPECT_EQ(second->reads, 1);
  EXPECT_EQ(core_.LiveRooms(), 0);
}

TEST_F(EngineHostTest, AnEngineThatLeavesWhileItOpensIsForgotten) {
  const auto first = Begin(Role::kDecode);
  StartCopy();
  host_.OnStreamEnded(first, kCut);
  RunAll();
  const auto second = Open(Role::kDecode);
  host_.OnStreamEnded(second, kCut);
  EXPECT_TRUE(second->end.has_value());
  const auto third = Open(Role::kDecode);
  core_.OnMoveDone(ports_.mover.running.begin()->first, absl::CancelledError("cut"), loop_.Now());
  RunAll();
  EXPECT_FALSE(second->opened());
  EXPECT_TRUE(third->opened());
}

TEST_F(EngineHostTest, I2_EachSessionHasSealsOfAGenerationOfItsOwn) {
  const auto first = Begin(Role::kPrefill);
  const uint64_t generation = SealGeneration();
  host_.OnStreamEnded(first, kCut);
  RunAll();
  // No CreatePool in between: the engine kept its mapping, and may have voided what was.
  ASSERT_TRUE(Open(Role::kPrefill)->opened());
  EXPECT_GT(SealGeneration(), generation);
}

TEST_F(EngineHostTest, AnEngineThatNeverOpensASessionIsGivenUp) {
  ASSERT_THAT(CreatePool(), IsOk());
  ASSERT_THAT(Register(Role::kPrefill), IsOk());
  Pass(absl::Minutes(9));  // it may load its model
  EXPECT_EQ(host_.state(), AgentState::kReady);
  Pass(absl::Minutes(2));
  EXPECT_EQ(host_.state(), AgentState::kIdle);
  EXPECT_TRUE(pools_.Views().empty());
  EXPECT_EQ(bootstrap_.deregistered.size(), 1u);
}

TEST_F(EngineHostTest, CallsThatFailDoNotKeepADeadEnginesPool) {
  const auto first = Begin(Role::kDecode);
  host_.OnStreamEnded(first, kCut);
  RunAll();
  Pass(absl::Seconds(20));
  EXPECT_THAT(CreatePool(kPoolSize + kPoolSize),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kPoolExists));
  Pass(absl::Seconds(11));
  EXPECT_TRUE(pools_.Views().empty());
  EXPECT_THAT(CreatePool(kPoolSize + kPoolSize), IsOk());
}

}  // namespace
}  // namespace pageferry::agent
