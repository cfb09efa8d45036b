#include "libs/transport/slicer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::transport {
namespace {

constexpr RegionId kSource{1};
constexpr RegionId kTarget{2};
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

class SlicerTest : public testing::Test {
 protected:
  absl::StatusOr<CopyPlan> Plan(const std::vector<Step>& steps) {
    return PlanCopy(
        steps,
        [this](RegionId id) {
          return id == kSource ? RegionBytes{source_.data(), Size(source_)} : RegionBytes();
        },
        [this](RegionId id) {
          return id == kTarget ? RegionBytes{target_.data(), Size(target_)} : RegionBytes();
        });
  }
  static int64_t Size(const std::vector<std::byte>& bytes) {
    return static_cast<int64_t>(bytes.size());
  }
  static Step MakeStep(std::vector<EntryPair> entries, std::vector<RunPair> runs) {
    return {std::make_shared<const std::vector<EntryPair>>(std::move(entries)), std::move(runs)};
  }
  static EntryPair Pair(int64_t source_offset, int64_t target_offset, int64_t item_size) {
    return {kSource, ByteCount(source_offset), kTarget, ByteCount(target_offset),
            ByteCount(item_size)};
  }
  // Cuts and copies all, checks the sizes of slices, answers the number of segments.
  size_t CopyAll(Slicer& slicer, int64_t slice_size) {
    std::vector<Segment> segments;
    size_t count = 0;
    while (slicer.has_more()) {
      slicer.Next(segments);
      EXPECT_FALSE(segments.empty());
      int64_t bytes = 0;
      for (const Segment& segment : segments) {
        std::memcpy(segment.target, segment.source, segment.size);
        bytes += static_cast<int64_t>(segment.size);
      }
      EXPECT_LE(bytes, slice_size);
      if (slicer.has_more() && segments.size() < 4096) {
        EXPECT_EQ(bytes, slice_size);
      }
      count += segments.size();
    }
    return count;
  }

  std::vector<std::byte> source_ = std::vector<std::byte>(1000);
  std::vector<std::byte> target_ = std::vector<std::byte>(2000);
};

TEST_F(SlicerTest, RandomPlansAgainstItemByItemCopies) {
  constexpr uint64_t kSeed = 7;
  std::mt19937_64 random(kSeed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  source_.resize(100'000);
  target_.resize(120'000);
  for (std::byte& byte : source_) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> expected = target_;
    std::vector<Step> steps;
    for (int64_t s = below(3); s >= 0; --s) {
      std::vector<RunPair> runs;
      for (int64_t r = below(5); r > 0; --r) runs.push_back({below(20), below(20), below(4)});
      std::vector<EntryPair> entries;
      for (int64_t e = below(4); e > 0; --e) {
        entries.push_back(Pair(below(50'000), below(70'000), 1 + below(2000)));
      }
      for (const EntryPair& entry : entries) {
        for (const RunPair& run : runs) {
          for (int64_t i = 0; i < run.count; ++i) {
            const int64_t size = entry.item_size.value();
            // As the routine: source is never written, so the order is that of the plan.
            std::memcpy(
                expected.data() + entry.target_offset.value() + (run.target_first + i) * size,
                source_.data() + entry.source_offset.value() + (run.source_first + i) * size,
                static_cast<size_t>(size));
          }
        }
      }
      steps.push_back(MakeStep(std::move(entries), std::move(runs)));
    }
    auto plan = Plan(steps);
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(plan->bytes, BatchBytes(steps));
    const int64_t slice_size = 1 + below(5000);
    Slicer slicer(*std::move(plan), ByteCount(slice_size));
    CopyAll(slicer, slice_size);
    ASSERT_TRUE(target_ == expected) << "seed " << kSeed << " round " << round;
  }
}

TEST_F(SlicerTest, MergesWhatFollowsOnBothSides) {
  auto plan = Plan({MakeStep({Pair(0, 100, 10)}, {{0, 0, 5}, {5, 5, 5}, {10, 11, 1}})});
  ASSERT_THAT(plan, IsOk());
  Slicer slicer(*std::move(plan), ByteCount(1 << 20));
  EXPECT_EQ(CopyAll(slicer, 1 << 20), 2U);
}

TEST_F(SlicerTest, MergesAcrossEntries) {
  auto plan = Plan({MakeStep({Pair(0, 100, 10), Pair(50, 150, 10)}, {{0, 0, 5}})});
  ASSERT_THAT(plan, IsOk());
  Slicer slicer(*std::move(plan), ByteCount(1 << 20));
  EXPECT_EQ(CopyAll(slicer, 1 << 20), 1U);
}

TEST_F(SlicerTest, ManySmallItemsAreCutByNumber) {
  source_.resize(20'000);
  target_.resize(40'000);
  std::vector<RunPair> runs;
  for (int64_t i = 0; i < 10'000; ++i) runs.push_back({i, 2 * i, 1});
  auto plan = Plan({MakeStep({Pair(0, 0, 1)}, std::move(runs))});
  ASSERT_THAT(plan, IsOk());
  Slicer slicer(*std::move(plan), ByteCount(1 << 20));
  EXPECT_EQ(CopyAll(slicer, 1 << 20), 10'000U);
}

TEST_F(SlicerTest, NothingToMove) {
  for (const std::vector<Step>& steps : {std::vector<Step>{},
                                         {Step{nullptr, {{0, 0, 1}}}},
                                         {MakeStep({}, {{0, 0, 1}})},
                                         {MakeStep({Pair(0, 0, 10)}, {})},
                                         {MakeStep({Pair(0, 0, 10)}, {{0, 0, 0}})}}) {
    auto plan = Plan(steps);
    ASSERT_THAT(plan, IsOk());
    EXPECT_FALSE(Slicer(*std::move(plan), ByteCount(1)).has_more());
  }
}

TEST_F(SlicerTest, WholeRegionsAreInBounds) {
  EXPECT_THAT(Plan({MakeStep({Pair(0, 1000, 10)}, {{0, 0, 100}})}), IsOk());
  EXPECT_THAT(Plan({MakeStep({Pair(999, 1999, 1)}, {{0, 0, 1}})}), IsOk());
}

TEST_F(SlicerTest, RefusesWhatLiesOutside) {
  const std::vector<Step> bad = {
      MakeStep({Pair(0, 0, 10)}, {{0, 0, 101}}),
      MakeStep({Pair(1, 0, 10)}, {{0, 0, 100}}),
      MakeStep({Pair(0, 1001, 10)}, {{0, 0, 100}}),
      MakeStep({Pair(0, 0, 10)}, {{0, 0, 1}, {100, 0, 1}}),
      MakeStep({Pair(0, 0, 10)}, {{0, 0, 1}, {0, 200, 1}}),
      MakeStep({Pair(0, 0, 10), Pair(995, 0, 10)}, {{0, 0, 1}}),
      MakeStep({Pair(1001, 0, 10)}, {{0, 0, 1}}),
      MakeStep({Pair(-1, 0, 10)}, {{0, 0, 1}}),
      MakeStep({Pair(0, -1, 10)}, {{0, 0, 1}}),
      MakeStep({Pair(0, 0, 0)}, {{0, 0, 1}}),
      MakeStep({Pair(0, 0, -10)}, {{0, 0, 1}}),
      MakeStep({Pair(0, 0, 10)}, {{-1, 0, 1}}),
      MakeStep({Pair(0, 0, 10)}, {{0, -1, 1}}),
      MakeStep({Pair(0, 0, 10)}, {{0, 0, -1}}),
      // Products and sums that do not fit 64 bits.
      MakeStep({Pair(0, 0, 10)}, {{kMax, 0, kMax}}),
      MakeStep({Pair(0, 0, 10)}, {{0, kMax, 1}}),
      MakeStep({Pair(0, 0, int64_t{1} << 32)}, {{0, 0, int64_t{1} << 32}}),
      MakeStep({Pair(0, 0, kMax)}, {{0, 0, kMax}}),
      MakeStep({Pair(0, 0, kMax)}, {{2, 2, 1}}),
      MakeStep({Pair(kMax, 0, kMax)}, {{0, 0, 1}}),
      MakeStep({Pair(0, kMax, 1)}, {{0, 0, 1}}),
      MakeStep({EntryPair{RegionId(9), ByteCount(0), kTarget, ByteCount(0), ByteCount(1)}},
               {{0, 0, 1}}),
      MakeStep({EntryPair{kSource, ByteCount(0), kSource, ByteCount(0), ByteCount(1)}},
               {{0, 0, 1}}),
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    const std::vector<Step> steps = {MakeStep({Pair(0, 0, 1)}, {{0, 0, 1}}), bad[i]};
    const auto plan = Plan(steps);
    EXPECT_THAT(plan, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPages))
        << "case " << i;
    EXPECT_TRUE(MetadataOf(plan.status()).contains("allowed"));
  }
}

}  // namespace
}  // namespace pageferry::transport
