#include "libs/common/page_runs.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Runs = std::vector<PageRun>;

const auto kBad = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPages);

std::vector<int64_t> Pages(const Runs& runs) {
  std::vector<int64_t> pages;
  for (const PageRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) pages.push_back(run.first + i);
  }
  return pages;
}

Runs RandomRuns(std::mt19937& random, int64_t total) {
  Runs runs;
  while (total > 0) {
    const auto count = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(total));
    runs.push_back({static_cast<int64_t>(random() % 50), count});
    total -= count;
  }
  return runs;
}

TEST(PageRunsTest, ChecksEachRun) {
  EXPECT_THAT(CheckPageRuns({}, 0), IsOk());
  EXPECT_THAT(CheckPageRuns(Runs{{0, 10}}, 10), IsOk());
  EXPECT_THAT(CheckPageRuns(Runs{{9, 1}, {0, 9}}, 10), IsOk());
  for (const PageRun& run : Runs{{0, 11},
                                 {10, 1},
                                 {-1, 2},
                                 {0, 0},
                                 {0, -1},
                                 {INT64_MAX, 1},
                                 {1, INT64_MAX},
                                 {INT64_MAX, INT64_MAX},
                                 {INT64_MIN, INT64_MIN},
                                 {INT64_MIN, INT64_MAX}}) {
    EXPECT_THAT(CheckPageRuns(Runs{run}, 10), kBad) << run;
  }
  EXPECT_THAT(CheckPageRuns(Runs{{0, 1}}, 0), kBad);
  EXPECT_THAT(CheckPageRuns(Runs{{0, 1}}, -5), kBad);
  EXPECT_THAT(CheckPageRuns(Runs{{0, INT64_MAX}}, INT64_MAX), IsOk());
}

TEST(PageRunsTest, NoPageTwice) {
  EXPECT_THAT(CheckPageRuns(Runs{{0, 2}, {1, 1}}, 10), kBad);
  EXPECT_THAT(CheckPageRuns(Runs{{5, 1}, {5, 1}}, 10), kBad);
  EXPECT_THAT(CheckPageRuns(Runs{{8, 2}, {0, 3}, {2, 1}}, 10), kBad);
  EXPECT_THAT(CheckPageRuns(Runs{{0, INT64_MAX}, {INT64_MAX - 1, 1}}, INT64_MAX), kBad);
  EXPECT_THAT(CheckPageRuns(Runs{{8, 2}, {0, 3}, {3, 5}}, 10), IsOk());
}

TEST(PageRunsTest, TotalSaturates) {
  EXPECT_EQ(TotalPages({}), 0);
  EXPECT_EQ(TotalPages(Runs{{0, 3}, {9, 4}}), 7);
  EXPECT_EQ(TotalPages(Runs{{0, INT64_MAX}, {0, INT64_MAX}}), INT64_MAX);
  EXPECT_EQ(TotalPages(Runs{{0, -5}}), 0);
}

TEST(PageRunsTest, MergesNeighboursInListOrderOnly) {
  EXPECT_THAT(MergeRuns(Runs{{0, 2}, {2, 3}, {9, 1}, {5, 0}, {10, 1}, {5, 4}}),
              ElementsAre(PageRun{0, 5}, PageRun{9, 2}, PageRun{5, 4}));
}

TEST(PageRunsTest, SlicesByPosition) {
  const Runs runs = {{10, 3}, {0, 2}, {20, 5}};
  EXPECT_THAT(SliceRuns(runs, 0, 10), IsOkAndHolds(ElementsAre(runs[0], runs[1], runs[2])));
  EXPECT_THAT(SliceRuns(runs, 2, 4),
              IsOkAndHolds(ElementsAre(PageRun{12, 1}, PageRun{0, 2}, PageRun{20, 1})));
  EXPECT_THAT(SliceRuns(runs, 10, 0), IsOkAndHolds(IsEmpty()));
  const auto out = StatusIs(absl::StatusCode::kOutOfRange, Reason::kBadPages);
  EXPECT_THAT(SliceRuns(runs, 0, 11), out);
  EXPECT_THAT(SliceRuns(runs, 11, 0), out);
  EXPECT_THAT(SliceRuns(runs, -1, 2), out);
  EXPECT_THAT(SliceRuns(runs, 1, -1), out);
  EXPECT_THAT(SliceRuns(runs, INT64_MAX, INT64_MAX), out);
}

TEST(PageRunsTest, PairsInMaximalRuns) {
  EXPECT_THAT(PairRuns(Runs{{0, 4}, {4, 4}}, Runs{{100, 6}, {50, 2}}),
              IsOkAndHolds(ElementsAre(RunPair{0, 100, 6}, RunPair{6, 50, 2})));
  EXPECT_THAT(PairRuns({}, {}), IsOkAndHolds(IsEmpty()));
}

TEST(PageRunsTest, PairsOnlyEqualTotalsOfGoodRuns) {
  const auto mismatch = StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kPageCountMismatch);
  const auto result = PairRuns(Runs{{0, 4}}, Runs{{0, 5}});
  EXPECT_THAT(result, mismatch);
  EXPECT_EQ(MetadataOf(result.status()).at("granted"), "5");
  EXPECT_EQ(MetadataOf(result.status()).at("sent"), "4");
  EXPECT_THAT(PairRuns(Runs{{0, 1}}, {}), mismatch);
  EXPECT_THAT(PairRuns(Runs{{0, INT64_MAX}, {0, 1}}, Runs{{0, INT64_MAX}}), mismatch);
  EXPECT_THAT(PairRuns(Runs{{0, 0}}, Runs{{0, 0}}), kBad);
  EXPECT_THAT(PairRuns(Runs{{-1, 1}}, Runs{{0, 1}}), kBad);
}

TEST(PageRunsTest, AgreesWithLoopsOverPages) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t total = 1 + static_cast<int64_t>(random() % 30);
    const Runs source = RandomRuns(random, total);
    const Runs target = RandomRuns(random, total);
    EXPECT_EQ(Pages(MergeRuns(source)), Pages(source));

    const auto first = static_cast<int64_t>(random() % static_cast<uint32_t>(total + 1));
    const auto count = static_cast<int64_t>(random() % static_cast<uint32_t>(total - first + 1));
    ASSERT_OK_AND_ASSIGN(const Runs slice, SliceRuns(source, first, count));
    const std::vector<int64_t> pages = Pages(source);
    EXPECT_EQ(Pages(slice),
              std::vector<int64_t>(pages.begin() + first, pages.begin() + first + count));

    ASSERT_OK_AND_ASSIGN(const std::vector<RunPair> pairs, PairRuns(source, target));
    Runs sources;
    Runs targets;
    for (size_t i = 0; i < pairs.size(); ++i) {
      sources.push_back({pairs[i].source_first, pairs[i].count});
      targets.push_back({pairs[i].target_first, pairs[i].count});
      if (i == 0) continue;
      EXPECT_FALSE(pairs[i - 1].source_first + pairs[i - 1].count == pairs[i].source_first &&
                   pairs[i - 1].target_first + pairs[i - 1].count == pairs[i].target_first);
    }
    EXPECT_EQ(Pages(sources), Pages(source));
    EXPECT_EQ(Pages(targets), Pages(target));
  }
}

}  // namespace
}  // namespace pageferry
