#include "libs/common/ids.h"

#include <limits>
#include <sstream>
#include <type_traits>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pageferry {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

static_assert(!std::is_convertible_v<RoomId, Epoch>);
static_assert(!std::is_constructible_v<RoomId, Epoch>);
static_assert(!std::is_convertible_v<int64_t, RoomId>);
static_assert(!std::is_convertible_v<AgentId, EngineId>);

TEST(IdsTest, SaturatesAtBothBounds) {
  EXPECT_EQ(SaturatingAdd(kMax, 1), kMax);
  EXPECT_EQ(SaturatingAdd(kMin, -1), kMin);
  EXPECT_EQ(SaturatingSubtract(kMin, 1), kMin);
  EXPECT_EQ(SaturatingSubtract(0, kMin), kMax);
  EXPECT_EQ(SaturatingMultiply(kMax, 2), kMax);
  EXPECT_EQ(SaturatingMultiply(kMax, -2), kMin);
  EXPECT_EQ(SaturatingMultiply(kMin, -1), kMax);
  EXPECT_EQ(SaturatingMultiply(6, -7), -42);
}

TEST(IdsTest, NumbersCompareHashAndPrint) {
  EXPECT_LT(Epoch(1), Epoch(2));
  EXPECT_EQ(Epoch(1).Next(), Epoch(2));
  EXPECT_EQ(Epoch(kMax).Next(), Epoch(kMax));
  const absl::flat_hash_set<RoomId> rooms = {RoomId(1), RoomId(1), RoomId(2)};
  EXPECT_EQ(rooms.size(), 2U);
  std::ostringstream out;
  out << RoomId(7) << " " << AgentId("a");
  EXPECT_EQ(out.str(), "7 a");
}

TEST(IdsTest, ByteCountsAddUp) {
  ByteCount bytes(5);
  bytes += ByteCount(7);
  EXPECT_EQ(bytes - ByteCount(2), ByteCount(10));
  EXPECT_EQ(bytes * 3, ByteCount(36));
  EXPECT_EQ(ByteCount(kMax) + ByteCount(1), ByteCount(kMax));
}

TEST(MonotonicTimeTest, AddsAndSubtracts) {
  const MonotonicTime time = MonotonicTime::FromNanoseconds(1'000'000'000);
  EXPECT_EQ(time + absl::Milliseconds(1), MonotonicTime::FromNanoseconds(1'001'000'000));
  EXPECT_EQ(time - absl::Seconds(1), MonotonicTime());
  EXPECT_EQ((time + absl::Seconds(2)) - time, absl::Seconds(2));
}

TEST(MonotonicTimeTest, BoundsAreSticky) {
  const MonotonicTime never = MonotonicTime::InfiniteFuture();
  const MonotonicTime now = MonotonicTime::FromNanoseconds(5);
  EXPECT_EQ(never - absl::Seconds(1), never);
  EXPECT_EQ(now + absl::InfiniteDuration(), never);
  EXPECT_EQ(now - absl::InfiniteDuration(), MonotonicTime::InfinitePast());
  EXPECT_EQ(never - now, absl::InfiniteDuration());
  EXPECT_EQ(now - never, -absl::InfiniteDuration());
  EXPECT_EQ(never - never, absl::ZeroDuration());
  EXPECT_LT(now, never);
  EXPECT_LT(MonotonicTime::InfinitePast(), now);
}

}  // namespace
}  // namespace pageferry
