#include "libs/common/stream_outbox.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/ids.h"

namespace pageferry {
namespace {

using testing::ElementsAre;

PushResult Push(StreamOutbox<std::string>& outbox, std::string frame, int64_t bytes = 1) {
  return outbox.Push(std::move(frame), ByteCount(bytes));
}

TEST(StreamOutboxTest, OneFrameInFlightTheRestInOrder) {
  StreamOutbox<std::string> outbox({});
  EXPECT_EQ(outbox.in_flight(), nullptr);
  EXPECT_EQ(Push(outbox, "a"), PushResult::kStart);
  const std::string* const in_flight = outbox.in_flight();
  EXPECT_EQ(Push(outbox, "b"), PushResult::kQueued);
  EXPECT_EQ(Push(outbox, "c"), PushResult::kQueued);
  EXPECT_EQ(outbox.in_flight(), in_flight);
  EXPECT_EQ(*in_flight, "a");
  EXPECT_EQ(*outbox.OnWriteDone(), "b");
  EXPECT_EQ(*outbox.OnWriteDone(), "c");
  EXPECT_EQ(outbox.OnWriteDone(), nullptr);
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(Push(outbox, "d"), PushResult::kStart);
}

TEST(StreamOutboxTest, FrameInFlightStaysInPlace) {
  StreamOutbox<std::string> outbox({.max_frames = 10'000});
  ASSERT_EQ(Push(outbox, std::string(100, 'a')), PushResult::kStart);
  const std::string* const in_flight = outbox.in_flight();
  for (int i = 0; i < 5'000; ++i) ASSERT_EQ(Push(outbox, "b"), PushResult::kQueued);
  EXPECT_EQ(outbox.in_flight(), in_flight);
  EXPECT_EQ(*in_flight, std::string(100, 'a'));
}

TEST(StreamOutboxTest, BoundsFramesAndLeavesTheRefusedOneAlone) {
  StreamOutbox<std::string> outbox({.max_frames = 2});
  EXPECT_EQ(Push(outbox, "a"), PushResult::kStart);
  EXPECT_EQ(Push(outbox, "b"), PushResult::kQueued);
  std::string refused = "c";
  EXPECT_EQ(outbox.Push(std::move(refused), ByteCount(1)), PushResult::kOverflow);
  EXPECT_EQ(refused, "c");  // NOLINT: that is the promise
  EXPECT_EQ(*outbox.OnWriteDone(), "b");
  EXPECT_EQ(Push(outbox, "c"), PushResult::kQueued);
}

TEST(StreamOutboxTest, BoundsBytesButTakesOneLargeFrame) {
  StreamOutbox<std::string> outbox({.max_bytes = ByteCount(10)});
  EXPECT_EQ(Push(outbox, "large", 11), PushResult::kStart);
  EXPECT_EQ(Push(outbox, "x", 0), PushResult::kOverflow);
  EXPECT_EQ(outbox.OnWriteDone(), nullptr);
  EXPECT_EQ(outbox.bytes(), ByteCount(0));
  EXPECT_EQ(Push(outbox, "a", 4), PushResult::kStart);
  EXPECT_EQ(Push(outbox, "b", 6), PushResult::kQueued);
  EXPECT_EQ(Push(outbox, "c", 1), PushResult::kOverflow);
  EXPECT_EQ(outbox.bytes(), ByteCount(10));
}

TEST(StreamOutboxTest, CloseRefusesButDrains) {
  StreamOutbox<std::string> outbox({});
  EXPECT_EQ(Push(outbox, "a"), PushResult::kStart);
  EXPECT_EQ(Push(outbox, "b"), PushResult::kQueued);
  outbox.Close();
  EXPECT_EQ(Push(outbox, "c"), PushResult::kClosed);
  EXPECT_EQ(*outbox.OnWriteDone(), "b");
  EXPECT_EQ(outbox.OnWriteDone(), nullptr);
}

TEST(StreamOutboxTest, CloseAndDropKeepsTheFrameInFlight) {
  StreamOutbox<std::string> outbox({});
  EXPECT_THAT(outbox.CloseAndDropWaiting(), ElementsAre());
  StreamOutbox<std::unique_ptr<int>> owning({});
  for (int i = 0; i < 3; ++i) (void)owning.Push(std::make_unique<int>(i), ByteCount(1));
  EXPECT_THAT(owning.CloseAndDropWaiting(), ElementsAre(testing::Pointee(1), testing::Pointee(2)));
  EXPECT_EQ(**owning.in_flight(), 0);
  EXPECT_EQ(owning.bytes(), ByteCount(1));
  EXPECT_EQ(owning.OnWriteDone(), nullptr);
}

}  // namespace
}  // namespace pageferry
