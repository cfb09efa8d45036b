#include "libs/transport/seal_table.h"

#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::transport {
namespace {

class SealTableTest : public testing::Test {
 protected:
  SealTableTest() { header_.generation = 41; }

  PoolHeader header_ = {};
  std::vector<SealWord> words_ = std::vector<SealWord>(kSealCount);
};

TEST_F(SealTableTest, MakesAndBreaks) {
  words_[kSealCount - 1] = 99;  // left by an earlier life
  SealTable table(header_, words_.data());
  EXPECT_EQ(words_[kSealCount - 1], 0U);
  EXPECT_EQ(header_.generation, 42U);
  const auto seal = table.Make();
  ASSERT_THAT(seal, IsOk());
  EXPECT_EQ(words_[seal->index], seal->value);
  EXPECT_TRUE(SealIsOfGeneration(seal->value, 42));
  EXPECT_FALSE(SealIsOfGeneration(seal->value, 43));
  EXPECT_EQ(table.whole(), 1);
  table.Break(*seal);
  EXPECT_EQ(words_[seal->index], 0U);
  EXPECT_EQ(table.whole(), 0);
}

TEST_F(SealTableTest, BreakTakesOnlyTheSealThatIsMeant) {
  SealTable table(header_, words_.data());
  const auto first = table.Make();
  table.Break(*first);
  const auto second = table.Make();
  ASSERT_EQ(first->index, second->index);  // the word is used again, the value is not
  EXPECT_NE(first->value, second->value);
  table.Break(*first);
  table.Break({second->index, 0});
  table.Break({-1, second->value});
  table.Break({kSealCount, second->value});
  EXPECT_EQ(words_[second->index], second->value);
  EXPECT_EQ(table.whole(), 1);
}

TEST_F(SealTableTest, IsBounded) {
  SealTable table(header_, words_.data());
  std::set<std::pair<int32_t, uint64_t>> seals;
  Seal last;
  for (int32_t i = 0; i < kSealCount; ++i) {
    const auto seal = table.Make();
    ASSERT_THAT(seal, IsOk());
    seals.emplace(seal->index, seal->value);
    last = *seal;
  }
  EXPECT_EQ(seals.size(), static_cast<size_t>(kSealCount));
  EXPECT_THAT(table.Make(), StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitReached));
  table.Break(last);
  EXPECT_THAT(table.Make(), IsOk());
}

TEST_F(SealTableTest, BreakAllBeginsAGeneration) {
  SealTable table(header_, words_.data());
  const auto seal = table.Make();
  header_.generation = 1000;  // the engine did, thinking that we were dead
  EXPECT_FALSE(SealIsOfGeneration(table.Make()->value, header_.generation));
  table.BreakAll();
  EXPECT_EQ(words_[seal->index], 0U);
  EXPECT_EQ(table.whole(), 0);
  EXPECT_TRUE(SealIsOfGeneration(table.Make()->value, 1001));
  EXPECT_EQ(header_.generation, 1001U);
}

TEST_F(SealTableTest, ScribblesOverTheWordsConfuseNobody) {
  SealTable table(header_, words_.data());
  const auto seal = table.Make();
  words_[seal->index] = 12345;
  table.Break(*seal);
  EXPECT_EQ(words_[seal->index], 0U);
  EXPECT_EQ(table.whole(), 0);
}

TEST_F(SealTableTest, NoValueIsZero) {
  header_.generation = 0xff'ffff;
  SealTable table(header_, words_.data());
  EXPECT_NE(table.Make()->value, 0U);
}

TEST_F(SealTableTest, Threads) {
  SealTable table(header_, words_.data());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto seal = table.Make();
        EXPECT_EQ(words_[seal->index].load(), seal->value);
        table.Break(*seal);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.whole(), 0);
}

}  // namespace
}  // namespace pageferry::transport
