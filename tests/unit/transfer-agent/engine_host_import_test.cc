// Memory that the engine owns: it goes with the engine, and makes way for the next one's.
#include "tests/unit/transfer-agent/engine_host_fixture.h"

namespace pageferry::agent {
namespace {

TEST_F(EngineHostTest, ImportedMemoryIsLetGoOneGraceTimeAfterItsEngine) {
  const transport::FileHandle memory = MakeMemory();
  ASSERT_THAT(ImportPool(memory), IsOk());
  ASSERT_THAT(Register(Role::kDecode), IsOk());
  const auto session = Open(Role::kDecode);
  ASSERT_TRUE(session->opened());
  EXPECT_THAT(host_.ReleasePool("pool"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));
  host_.OnStreamEnded(session, kCut);
  Pass(absl::Seconds(29));
  ASSERT_EQ(pools_.Views().size(), 1u);
  EXPECT_EQ(files(), 1u);
  Pass(absl::Seconds(2));
  EXPECT_TRUE(pools_.Views().empty());
  EXPECT_EQ(files(), 0u) << "the control file goes with its pool";
}

TEST_F(EngineHostTest, ARepeatedImportIsTheSamePool) {
  const transport::FileHandle memory = MakeMemory();
  const auto first = ImportPool(memory);
  ASSERT_THAT(first, IsOk());
  EXPECT_TRUE(first->imported);
  const auto again = ImportPool(memory);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->local, first->local);
  // Neither of the two ways takes the other's name.
  EXPECT_THAT(CreatePool(), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kPoolExists));
  ASSERT_THAT(host_.ReleasePool("pool"), IsOk());
  ASSERT_THAT(CreatePool(), IsOk());
  EXPECT_THAT(ImportPool(memory), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kPoolExists));
}

TEST_F(EngineHostTest, AnEngineThatStartsAnewBringsItsNewMemory) {
  const transport::FileHandle memory = MakeMemory();
  const auto old = ImportPool(memory);
  ASSERT_THAT(old, IsOk());
  ASSERT_THAT(Register(Role::kPrefill), IsOk());
  const auto session = Open(Role::kPrefill);
  const transport::FileHandle anew = MakeMemory();
  EXPECT_THAT(ImportPool(anew), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kPoolExists));
  EXPECT_TRUE(own_.registered);
  host_.OnStreamEnded(session, kCut);
  RunAll();
  const auto view = ImportPool(anew);
  ASSERT_THAT(view, IsOk());
  EXPECT_NE(view->local.data->inode, old->local.data->inode);
  EXPECT_FALSE(own_.registered) << "its pool is not the one that it registered";
  EXPECT_THAT(Register(Role::kPrefill), IsOk());
  EXPECT_TRUE(Open(Role::kPrefill)->opened());
}

TEST_F(EngineHostTest, I1_ImportedMemoryStaysWhileACopyRuns) {
  const transport::FileHandle memory = MakeMemory();
  ASSERT_THAT(ImportPool(memory), IsOk());
  ASSERT_THAT(Register(Role::kDecode), IsOk());
  const auto session = Open(Role::kDecode);
  StartCopy();
  host_.OnStreamEnded(session, kCut);
  RunAll();
  EXPECT_THAT(ImportPool(MakeMemory()),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));
  Pass(absl::Seconds(60));
  EXPECT_EQ(pools_.Views().size(), 1u);
  core_.OnMoveDone(ports_.mover.running.begin()->first, absl::CancelledError("cut"), loop_.Now());
  Pass(absl::Seconds(2));
  EXPECT_TRUE(pools_.Views().empty());
}

TEST_F(EngineHostTest, MemoryThatMayNotBeWrittenIsForPrefillOnly) {
  const transport::FileHandle memory = MakeMemory();
  ASSERT_THAT(ImportPool(memory, true), IsOk());
  const absl::Status decode = Register(Role::kDecode);
  EXPECT_THAT(decode, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  EXPECT_EQ(MetadataOf(decode)["field"], "profile.entries[0].pool_name");
  EXPECT_THAT(Register(Role::kPrefill), IsOk());
}

}  // namespace
}  // namespace pageferry::agent
