#include "libs/transport/huge_pages.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/transport/shm_pool.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {
namespace {

constexpr int64_t kSize = 3 * kHugePage;

ShmPoolOptions HugeOptions(const ShmFolder& folder, HugePages huge_pages, int64_t size = kSize) {
  ShmPoolOptions options = PoolOptions(folder, size);
  options.huge_pages = huge_pages;
  return options;
}

// A host that has `there` bytes of them.
ShmPoolOptions OnAHostWith(int64_t there, ShmPoolOptions options) {
  options.use_huge_pages = [there](std::byte*, ByteCount size) {
    HugePagesGot got;
    got.bytes = std::min(size, ByteCount(there));
    if (got.bytes < size) got.why = "there are no more";
    return got;
  };
  return options;
}

TEST(HugePages, SmapsIsReadForOneMapping) {
  const std::string smaps =
      "1000-3000 rw-s 00000000 00:1b 7 /dev/shm/a-b\nSize: 8 kB\nShmemPmdMapped:      2 kB\n"
      "3000-5000 rw-s 00000000 00:1b 7 /dev/shm/c\nSize: 8 kB\nShmemPmdMapped:   6144 kB\n"
      "5000-6000 rw-s 00000000 00:1b 7 /dev/shm/d\nSize: 4 kB\n";
  const auto find = [&](uintptr_t address) {
    return FindInSmaps(smaps, reinterpret_cast<const void*>(address), "ShmemPmdMapped:");
  };
  EXPECT_EQ(find(0x1000), ByteCount(2048));
  EXPECT_EQ(find(0x2fff), ByteCount(2048));
  EXPECT_EQ(find(0x3000), ByteCount(6144 << 10));
  EXPECT_EQ(find(0x5000), ByteCount(0)) << "no such line";
  EXPECT_EQ(find(0x7000), ByteCount(0)) << "no such mapping";
  EXPECT_EQ(FindInSmaps("", nullptr, "Size:"), ByteCount(0));
}

TEST(HugePages, SizesAreWholeHugePagesWhereTheyAreAskedFor) {
  EXPECT_EQ(PoolSize(ByteCount(5000), HugePages::kNo), ByteCount(8192));
  EXPECT_EQ(PoolSize(ByteCount(5000), HugePages::kPrefer), ByteCount(kHugePage));
  EXPECT_EQ(PoolSize(ByteCount(kHugePage + 1), HugePages::kRequire), ByteCount(2 * kHugePage));
}

TEST(HugePages, PreferredOnesMayBeMissingAndTheReasonIsKept) {
  const ShmFolder folder;
  const auto pool =
      ShmPool::CreateOrAdopt(OnAHostWith(kHugePage, HugeOptions(folder, HugePages::kPrefer)));
  ASSERT_THAT(pool, IsOk());
  EXPECT_EQ((*pool)->huge().bytes, ByteCount(kHugePage));
  EXPECT_EQ((*pool)->huge().why, "there are no more");
}

TEST(HugePages, RequiredOnesThatAreMissingAreAnErrorWithNumbers) {
  const ShmFolder folder;
  const auto pool =
      ShmPool::CreateOrAdopt(OnAHostWith(kHugePage, HugeOptions(folder, HugePages::kRequire)));
  ASSERT_THAT(pool, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
  auto metadata = MetadataOf(pool.status());
  EXPECT_EQ(metadata["needed_bytes"], std::to_string(kSize));
  EXPECT_EQ(metadata["available_bytes"], std::to_string(kHugePage));
  EXPECT_EQ(folder.files(), 0U);
}

TEST(HugePages, ALeftoverOutlivesARequirementThatFails) {
  const ShmFolder folder;
  {
    const auto pool = ShmPool::CreateOrAdopt(PoolOptions(folder, kSize));
    ASSERT_THAT(pool, IsOk());
    (*pool)->data()[7] = std::byte{77};
    (*pool)->LeaveBehind();
  }
  EXPECT_FALSE(
      ShmPool::CreateOrAdopt(OnAHostWith(0, HugeOptions(folder, HugePages::kRequire))).ok());
  const auto pool =
      ShmPool::CreateOrAdopt(OnAHostWith(kSize, HugeOptions(folder, HugePages::kRequire)));
  ASSERT_THAT(pool, IsOk());
  EXPECT_TRUE((*pool)->adopted());
  EXPECT_EQ((*pool)->data()[7], std::byte{77});
}

TEST(HugePages, OnThisHostTheyAreThereOrItSaysWhyNot) {
  const ShmFolder folder;
  {
    const auto pool = ShmPool::CreateOrAdopt(PoolOptions(folder, kSize));
    ASSERT_THAT(pool, IsOk());
    EXPECT_EQ((*pool)->huge().bytes, ByteCount());
    EXPECT_EQ((*pool)->huge().why, "");
    std::fill_n((*pool)->data(), kSize, std::byte{9});
    (*pool)->LeaveBehind();
  }
  const auto pool = ShmPool::CreateOrAdopt(HugeOptions(folder, HugePages::kPrefer));
  ASSERT_THAT(pool, IsOk());
  EXPECT_TRUE((*pool)->adopted());
  EXPECT_EQ(std::count((*pool)->data(), (*pool)->data() + kSize, std::byte{9}), kSize);
  const HugePagesGot& got = (*pool)->huge();
  EXPECT_EQ(got.why.empty(), got.bytes == ByteCount(kSize)) << got.why;
  if (!got.why.empty()) GTEST_SKIP() << got.why;
}

}  // namespace
}  // namespace pageferry::transport
