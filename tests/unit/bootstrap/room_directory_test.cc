#include "services/bootstrap/room_directory.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/bootstrap/table_records.h"

namespace pageferry::bootstrap {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Placement Room(int64_t room, int32_t dp_rank) { return {RoomId(room), dp_rank}; }

TEST(RoomDirectoryTest, FindsWhatWasPlacedInTheOrderAsked) {
  RoomDirectory directory(10);
  EXPECT_THAT(directory.Place(Key(), {{Room(1, 0), Room(2, 65'535)}}, absl::Seconds(5), At(0)),
              IsOkAndHolds(0));
  EXPECT_THAT(directory.Lookup(Key(), {{RoomId(2), RoomId(9), RoomId(1)}}, At(0)),
              ElementsAre(Room(2, 65'535), Room(1, 0)));
  EXPECT_THAT(directory.Lookup(Key("other"), {{RoomId(1)}}, At(0)), IsEmpty());
}

TEST(RoomDirectoryTest, TheLastOneWinsAndCountsAsMoved) {
  RoomDirectory directory(10);
  ASSERT_THAT(directory.Place(Key(), {{Room(1, 0)}}, absl::Seconds(5), At(0)), IsOk());
  EXPECT_THAT(directory.Place(Key(), {{Room(1, 0)}}, absl::Seconds(5), At(1)), IsOkAndHolds(0));
  EXPECT_THAT(directory.Place(Key(), {{Room(1, 3)}}, absl::Seconds(5), At(2)), IsOkAndHolds(1));
  EXPECT_THAT(directory.Lookup(Key(), {{RoomId(1)}}, At(2)), ElementsAre(Room(1, 3)));
  EXPECT_EQ(directory.size(), 1);
}

TEST(RoomDirectoryTest, LivesUntilJustBeforeItsExpiry) {
  RoomDirectory directory(10);
  ASSERT_THAT(directory.Place(Key(), {{Room(1, 0)}}, absl::Seconds(5), At(0)), IsOk());
  EXPECT_EQ(directory.NextExpiry(), At(5));
  const MonotonicTime before = At(5) - absl::Nanoseconds(1);
  EXPECT_THAT(directory.Lookup(Key(), {{RoomId(1)}}, before), ElementsAre(Room(1, 0)));
  EXPECT_THAT(directory.Lookup(Key(), {{RoomId(1)}}, At(5)), IsEmpty());
  directory.ExpireUpTo(before, 100);
  EXPECT_EQ(directory.size(), 1);
  // Expired but not dropped: placed anew, which is no move.
  EXPECT_THAT(directory.Place(Key(), {{Room(1, 2)}}, absl::Seconds(5), At(5)), IsOkAndHolds(0));
  EXPECT_FALSE(directory.ExpireUpTo(At(5), 100));
  EXPECT_EQ(directory.size(), 1);
  EXPECT_FALSE(directory.ExpireUpTo(At(10), 100));
  EXPECT_EQ(directory.size(), 0);
  EXPECT_EQ(directory.NextExpiry(), MonotonicTime::InfiniteFuture());
}

TEST(RoomDirectoryTest, ExpiryIsBoundedPerStep) {
  RoomDirectory directory(100);
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(directory.Place(Key(), {{Room(i, 0)}}, absl::Seconds(1), At(0)), IsOk());
  }
  EXPECT_TRUE(directory.ExpireUpTo(At(1), 4));
  EXPECT_EQ(directory.size(), 6);
  EXPECT_TRUE(directory.ExpireUpTo(At(1), 6));
  EXPECT_FALSE(directory.ExpireUpTo(At(1), 1));
}

TEST(RoomDirectoryTest, ABatchThatDoesNotFitIsRefusedWhole) {
  RoomDirectory directory(3);
  ASSERT_THAT(directory.Place(Key(), {{Room(1, 0), Room(2, 0)}}, absl::Seconds(5), At(0)), IsOk());
  EXPECT_THAT(
      directory.Place(Key(), {{Room(1, 7), Room(3, 7), Room(4, 7)}}, absl::Seconds(5), At(0)),
      StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitReached));
  EXPECT_THAT(directory.Lookup(Key(), {{RoomId(1), RoomId(3)}}, At(0)), ElementsAre(Room(1, 0)));
  // Known rooms and repeats inside the batch need no place.
  EXPECT_THAT(directory.Place(Key(), {{Room(1, 0), Room(3, 0), Room(3, 1), Room(2, 0)}},
                              absl::Seconds(5), At(0)),
              IsOkAndHolds(1));
  // Expired ones make room at once.
  EXPECT_THAT(directory.Place(Key("other"), {{Room(1, 0), Room(2, 0), Room(3, 0)}},
                              absl::Seconds(5), At(5)),
              IsOk());
  EXPECT_THAT(directory.Place(Key("third"), {{Room(1, 0)}}, absl::Seconds(5), At(5)),
              HasReason(Reason::kLimitReached));
}

TEST(RoomDirectoryTest, AgreesWithANaiveOne) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  RoomDirectory directory(200);
  std::map<std::pair<int, int64_t>, std::pair<int32_t, MonotonicTime>> naive;
  double now = 0;
  for (int step = 0; step < 20'000; ++step) {
    now += static_cast<double>(random() % 3);
    const int engine = static_cast<int>(random() % 5);
    const auto room = static_cast<int64_t>(random() % 30);
    if (random() % 2 == 0) {
      const auto ttl = absl::Seconds(1 + random() % 20);
      const auto dp_rank = static_cast<int32_t>(random() % 4);
      ASSERT_THAT(directory.Place(Key(absl::StrCat(engine)), {{Room(room, dp_rank)}}, ttl, At(now)),
                  IsOk());
      naive[{engine, room}] = {dp_rank, At(now) + ttl};
    }
    if (random() % 4 == 0) directory.ExpireUpTo(At(now), random() % 3);
    const auto found = directory.Lookup(Key(absl::StrCat(engine)), {{RoomId(room)}}, At(now));
    const auto want = naive.find({engine, room});
    const bool lives = want != naive.end() && want->second.second > At(now);
    ASSERT_EQ(found.size(), lives ? 1 : 0) << "step " << step;
    if (lives) {
      ASSERT_EQ(found[0].dp_rank, want->second.first) << "step " << step;
    }
  }
  while (directory.ExpireUpTo(At(now + 100), 64)) {
  }
  EXPECT_EQ(directory.size(), 0);
}

#if defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

size_t ResidentBytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(RoomDirectoryTest, ARoomTakesAtMost128Bytes) {
  constexpr int64_t kRooms = kSanitized ? 65'536 : 1'048'576;
  const size_t before = ResidentBytes();
  RoomDirectory directory(kRooms);
  std::vector<Placement> batch(8192);
  for (int64_t room = 0; room < kRooms;) {
    for (Placement& placement : batch) placement = Room(room++, 1);
    ASSERT_THAT(directory.Place(Key(), batch, absl::Minutes(5), At(0)), IsOk());
  }
  const size_t full = ResidentBytes();
  EXPECT_THAT(directory.Place(Key(), {{Room(kRooms, 0)}}, absl::Minutes(5), At(0)),
              HasReason(Reason::kLimitReached));
  EXPECT_EQ(directory.size(), kRooms);
  while (directory.ExpireUpTo(At(300), 4096)) {
  }
  EXPECT_EQ(directory.size(), 0);
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps memory of its own";
  const auto bytes = static_cast<int64_t>(full - before) / kRooms;
  RecordProperty("bytes_per_room", static_cast<int>(bytes));
  EXPECT_LE(bytes, 128);
}

}  // namespace
}  // namespace pageferry::bootstrap
