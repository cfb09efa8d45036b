#include "libs/common/topology.h"

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

const auto kBad = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField);

TEST(TopologyTest, ShapesAreBounded) {
  EXPECT_THAT(ValidateShape({}), IsOk());
  EXPECT_THAT(ValidateShape({65'536, 1, 16, 1}), IsOk());
  EXPECT_THAT(ValidateShape({65'537, 1, 1, 1}), kBad);
  EXPECT_THAT(ValidateShape({0, 1, 1, 1}), kBad);
  EXPECT_THAT(ValidateShape({1, -1, 1, 1}), kBad);
  EXPECT_THAT(ValidateShape({1, 1, INT64_MIN, 1}), kBad);
  EXPECT_THAT(ValidateShape({1, 1, 1, INT64_MAX}), kBad);
  EXPECT_THAT(ValidateShape({65'536, 1, 17, 1}), kBad);
  EXPECT_THAT(ValidateShape({65'536, 65'536, 65'536, 65'536}), kBad);
  EXPECT_EQ(MetadataOf(ValidateShape({1, 1, 0, 1})).at("field"), "shape.tp");
}

TEST(TopologyTest, CoordinatesLieInTheShape) {
  const ParallelShape shape{2, 1, 4, 2};
  EXPECT_THAT(ValidateCoordinate({1, 0, 3, 1}, shape), IsOk());
  EXPECT_THAT(ValidateCoordinate({2, 0, 0, 0}, shape), kBad);
  EXPECT_THAT(ValidateCoordinate({0, 1, 0, 0}, shape), kBad);
  EXPECT_THAT(ValidateCoordinate({0, 0, -1, 0}, shape), kBad);
}

TEST(TopologyTest, RanksCountThroughTpThenCpThenPpThenDp) {
  const ParallelShape shape{2, 2, 4, 3};
  EXPECT_EQ(ToRankIndex({0, 0, 1, 0}, shape), RankIndex(1));
  EXPECT_EQ(ToRankIndex({0, 1, 0, 0}, shape), RankIndex(4));
  EXPECT_EQ(ToRankIndex({0, 0, 0, 1}, shape), RankIndex(8));
  EXPECT_EQ(ToRankIndex({1, 0, 0, 0}, shape), RankIndex(24));
  for (int64_t rank = 0; rank < RankCount(shape); ++rank) {
    const RankCoordinate coordinate = ToCoordinate(RankIndex(rank), shape);
    EXPECT_THAT(ValidateCoordinate(coordinate, shape), IsOk());
    EXPECT_EQ(ToRankIndex(coordinate, shape), RankIndex(rank));
  }
}

TEST(TopologyTest, TextGoesThereAndBack) {
  EXPECT_EQ(ToString(RankCoordinate{0, 0, 3, 1}), "dp0 cp0 tp3 pp1");
  EXPECT_THAT(ParseRankCoordinate("dp0 cp0 tp3 pp1"), IsOkAndHolds(RankCoordinate{0, 0, 3, 1}));
  EXPECT_THAT(ParseParallelShape("dp2 cp1 tp4 pp2"), IsOkAndHolds(ParallelShape{2, 1, 4, 2}));
  EXPECT_THAT(ParseParallelShape("dp0 cp1 tp4 pp2"), kBad);
}

TEST(TopologyTest, OtherTextIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("dp0"), std::string("dp0 cp0 tp3"),
        std::string("cp0 dp0 tp3 pp1"), std::string("dp0 cp0 tp3 pp1 "),
        std::string("dp0  cp0 tp3 pp1"), std::string("dp-1 cp0 tp3 pp1"),
        std::string("dp+1 cp0 tp3 pp1"), std::string("dp cp0 tp3 pp1"),
        std::string("dp0x cp0 tp3 pp1"), std::string("dp65537 cp0 tp3 pp1"),
        std::string("dp99999999999999999999 cp0 tp3 pp1"), std::string(1 << 20, 'x'),
        std::string("dp0 cp0 tp3 pp\0", 15)}) {
    EXPECT_THAT(ParseRankCoordinate(text), kBad) << text.substr(0, 64);
  }
}

}  // namespace
}  // namespace pageferry
