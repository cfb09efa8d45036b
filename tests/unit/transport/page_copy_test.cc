#include "libs/transport/page_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>

namespace pageferry::transport {
namespace {

class PageCopy : public testing::TestWithParam<CopyMethod> {};

std::vector<std::byte> RandomBytes(std::mt19937_64& random, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  return bytes;
}

TEST_P(PageCopy, CopiesExactlyTheSegments) {
  constexpr uint64_t kSeed = 20260101;
  std::mt19937_64 random(kSeed);
  const std::vector<size_t> sizes = {0,   1,   63,   64,   65,   127,   128,    511,    512,
                                     513, 576, 1000, 4096, 4097, 65536, 131073, 200000, 65599};
  for (int round = 0; round < 20; ++round) {
    const size_t count = random() % 13;
    size_t total = 0;
    std::vector<Segment> segments;
    const std::vector<std::byte> source = RandomBytes(random, 1 << 19);
    std::vector<std::byte> target = RandomBytes(random, 3 << 20);
    std::vector<std::byte> expected = target;
    for (size_t i = 0; i < count; ++i) {
      total += random() % 200;  // a gap that must stay
      const size_t size = random() % 2 == 0 ? sizes[random() % sizes.size()] : random() % 3000;
      const size_t from = random() % (source.size() - size);
      segments.push_back({source.data() + from, target.data() + total, size});
      if (size > 0) std::memcpy(expected.data() + total, source.data() + from, size);
      total += size;
    }
    std::shuffle(segments.begin(), segments.end(), random);
    CopySegments(segments, GetParam());
    ASSERT_TRUE(target == expected) << "seed " << kSeed << " round " << round;
  }
}

TEST_P(PageCopy, EveryAlignmentAtTheEdgeOfTheMemory) {
  for (size_t offset = 0; offset < 64; ++offset) {
    for (const size_t size : {512 - offset, 1024 + 3 * offset, 640 - offset}) {
      const std::vector<std::byte> source(size, std::byte{7});
      std::vector<std::byte> target(offset + size);  // ends with it: a sanitizer sees one byte more
      const Segment segment{source.data(), target.data() + offset, size};
      CopySegments({&segment, 1}, GetParam());
      for (size_t i = 0; i < target.size(); ++i) {
        ASSERT_EQ(target[i], i < offset ? std::byte{0} : std::byte{7});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, PageCopy, testing::ValuesIn(CopyMethods()));

TEST(PageCopyBest, IsOneOfThem) {
  const std::vector<CopyMethod> methods = CopyMethods();
  EXPECT_NE(std::ranges::find(methods, BestCopyMethod()), methods.end());
}

}  // namespace
}  // namespace pageferry::transport
