#include "libs/transport/shared_mapping.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "libs/transport/pool_file.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kSize = 64 * kPage;

class SharedMappingTest : public testing::Test {
 protected:
  SharedMappingTest() : file_(open(folder_.File("f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    Resize(kSize);
  }
  void Resize(int64_t size) { EXPECT_EQ(ftruncate(file_.fd(), size), 0); }
  SharedMapping Map(SharedMapping::Access access) {
    auto mapping = SharedMapping::Map(file_.fd(), ByteCount(kSize), access);
    EXPECT_THAT(mapping, IsOk());
    return *std::move(mapping);
  }
  static std::byte Read(const SharedMapping& mapping, int64_t at) {
    return *static_cast<const volatile std::byte*>(mapping.data() + at);
  }
  static void Write(const SharedMapping& mapping, int64_t at) {
    *static_cast<volatile std::byte*>(mapping.data() + at) = std::byte{9};
  }

  ShmFolder folder_;
  FileHandle file_;
};

TEST_F(SharedMappingTest, BeginsAtAnOffsetOfTheFileAndABoundaryOfHugePages) {
  const SharedMapping whole = Map(SharedMapping::Access::kReadWrite);
  Write(whole, 3 * kPage);
  auto part = SharedMapping::Map(file_.fd(), ByteCount(kPage + 1), SharedMapping::Access::kReadOnly,
                                 ByteCount(3 * kPage));
  ASSERT_THAT(part, IsOk());
  EXPECT_EQ(part->size(), ByteCount(kPage + 1));
  EXPECT_EQ(Read(*part, 0), std::byte{9});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(part->data()) % (2 << 20), 0U);
  EXPECT_THAT(SharedMapping::Map(file_.fd(), ByteCount(kPage), SharedMapping::Access::kReadOnly,
                                 ByteCount(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadHandle));
}

TEST_F(SharedMappingTest, ReadOfACutFileIsZerosAndMarked) {
  const SharedMapping writer = Map(SharedMapping::Access::kReadWrite);
  const SharedMapping reader = Map(SharedMapping::Access::kReadOnly);
  Write(writer, 0);
  Write(writer, 10 * kPage);
  EXPECT_EQ(Read(reader, 10 * kPage), std::byte{9});
  EXPECT_FALSE(reader.damaged());
  Resize(kPage);
  EXPECT_EQ(Read(reader, 10 * kPage), std::byte{0});
  EXPECT_TRUE(reader.damaged());
  EXPECT_FALSE(writer.damaged());
  // What the file still has is still shared.
  EXPECT_EQ(Read(reader, 0), std::byte{9});
  Write(writer, 1);
  EXPECT_EQ(Read(reader, 1), std::byte{9});
}

TEST_F(SharedMappingTest, WriteToACutFileIsMarked) {
  const SharedMapping writer = Map(SharedMapping::Access::kReadWrite);
  Resize(0);
  Write(writer, 5 * kPage + 3);
  EXPECT_TRUE(writer.damaged());
}

TEST_F(SharedMappingTest, ManyThreadsOnOneMissingRange) {
  const SharedMapping reader = Map(SharedMapping::Access::kReadOnly);
  Resize(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t at = 0; at < kSize; at += kPage) EXPECT_EQ(Read(reader, at), std::byte{0});
      EXPECT_TRUE(reader.damaged());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SharedMappingTest, SlotIsFoundByAddress) {
  {
    const SharedMapping mapping = Map(SharedMapping::Access::kReadWrite);
    const SharedMapping::Slot* slot = SharedMapping::SlotOf(mapping.data() + kSize - 1);
    ASSERT_NE(slot, nullptr);
    EXPECT_EQ(SharedMapping::SlotOf(mapping.data()), slot);
    EXPECT_NE(SharedMapping::SlotOf(mapping.data() + kSize), slot);
    EXPECT_FALSE(SharedMapping::Damaged(*slot));
    Resize(0);
    Write(mapping, 0);
    EXPECT_TRUE(SharedMapping::Damaged(*slot));
  }
  const int local = 0;
  EXPECT_EQ(SharedMapping::SlotOf(&local), nullptr);
  Resize(kSize);
  EXPECT_FALSE(Map(SharedMapping::Access::kReadOnly).damaged());
}

TEST_F(SharedMappingTest, MovesAreWhole) {
  SharedMapping a = Map(SharedMapping::Access::kReadWrite);
  const std::byte* data = a.data();
  SharedMapping b = std::move(a);
  EXPECT_EQ(b.data(), data);
  b = Map(SharedMapping::Access::kReadWrite);
  Resize(0);
  Write(b, 0);
  EXPECT_TRUE(b.damaged());
}

TEST_F(SharedMappingTest, RefusesWhatCannotBeMapped) {
  EXPECT_THAT(SharedMapping::Map(-1, ByteCount(kSize), SharedMapping::Access::kReadOnly),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadHandle));
}

using SharedMappingDeathTest = SharedMappingTest;

TEST_F(SharedMappingDeathTest, OtherFaultsStillEndTheProcess) {
  const SharedMapping installs_the_handler = Map(SharedMapping::Access::kReadOnly);
  void* other = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, file_.fd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  Resize(0);
  EXPECT_DEATH({ (void)*static_cast<volatile char*>(other); }, "");
  EXPECT_DEATH(raise(SIGBUS), "");
  munmap(other, kSize);
}

}  // namespace
}  // namespace pageferry::transport
