#include "libs/transport/transport.h"

#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace pageferry::transport {
namespace {

TEST(TransportNames, ThereAndBack) {
  for (const TransportKind kind :
       {TransportKind::kLocal, TransportKind::kRdma, TransportKind::kTcp, TransportKind::kGrpc}) {
    EXPECT_EQ(ParseTransportName(TransportName(kind)), kind);
  }
  EXPECT_EQ(ParseTransportName("LOCAL"), std::nullopt);
  EXPECT_EQ(ParseTransportName(""), std::nullopt);
  EXPECT_EQ(ParseTransportName("unknown"), std::nullopt);
  EXPECT_EQ(TransportName(static_cast<TransportKind>(77)), "unknown");
}

Step MakeStep(std::vector<int64_t> item_sizes, std::vector<RunPair> runs) {
  std::vector<EntryPair> entries;
  for (const int64_t size : item_sizes) {
    entries.emplace_back();
    entries.back().item_size = ByteCount(size);
  }
  return {std::make_shared<const std::vector<EntryPair>>(std::move(entries)), std::move(runs)};
}

TEST(BatchBytesTest, SumsEntriesTimesItems) {
  EXPECT_EQ(BatchBytes({}), ByteCount(0));
  EXPECT_EQ(BatchBytes({MakeStep({100, 7}, {{0, 0, 3}, {9, 9, 2}}), MakeStep({1}, {{5, 5, 1}})}),
            ByteCount(107 * 5 + 1));
  EXPECT_EQ(BatchBytes({Step{nullptr, {{0, 0, 3}}}}), ByteCount(0));
}

TEST(BatchBytesTest, Saturates) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(BatchBytes({MakeStep({kMax, kMax}, {{0, 0, kMax}}), MakeStep({kMax}, {{0, 0, 1}})}),
            ByteCount(kMax));
}

}  // namespace
}  // namespace pageferry::transport
