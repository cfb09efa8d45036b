#include "libs/transport/shm_pool.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/transport/orphan_pools.h"
#include "libs/transport/pool_layout.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {
namespace {

using testing::Contains;
using testing::Key;
using testing::Pair;

constexpr int64_t kSize = 256 << 10;
constexpr const char* kFile = "pageferry.prefill-0.kv";

class ShmPoolTest : public testing::Test {
 protected:
  std::unique_ptr<ShmPool> Make(int64_t size = kSize) {
    auto pool = ShmPool::CreateOrAdopt(PoolOptions(folder_, size));
    EXPECT_THAT(pool, IsOk());
    return *std::move(pool);
  }
  // A pool whose agent has gone.
  void MakeLeftover(int64_t size = kSize) {
    const auto pool = Make(size);
    pool->data()[7] = std::byte{77};
    pool->LeaveBehind();
  }
  struct stat StatFile() const {
    struct stat status = {};
    EXPECT_EQ(stat(folder_.File(kFile).c_str(), &status), 0);
    return status;
  }
  // Overwrites bytes of the file from outside.
  template <class T>
  void Poke(off_t offset, const T& value) {
    const FileHandle file(open(folder_.File(kFile).c_str(), O_RDWR));
    ASSERT_EQ(pwrite(file.fd(), &value, sizeof(value), offset), ssize_t{sizeof(value)});
  }

  ShmFolder folder_;
};

TEST_F(ShmPoolTest, IsLaidOutAsTheHeaderSays) {
  const auto pool = Make(kSize - 1);  // rounded up
  EXPECT_EQ(pool->size(), ByteCount(kSize));
  EXPECT_FALSE(pool->adopted());
  EXPECT_EQ(pool->local().shm_name, std::string("/") + kFile);
  EXPECT_EQ(pool->local().mapping_size, ByteCount(kPoolDataOffset + kSize));
  EXPECT_EQ(pool->local().data_offset, ByteCount(kPoolDataOffset));
  EXPECT_EQ(StatFile().st_size, kPoolDataOffset + kSize);
  const FileHandle file(open(folder_.File(kFile).c_str(), O_RDWR));
  auto engine =
      SharedMapping::Map(file.fd(), pool->local().mapping_size, SharedMapping::Access::kReadWrite);
  ASSERT_THAT(engine, IsOk());
  const auto* header = reinterpret_cast<const PoolHeader*>(engine->data());
  EXPECT_EQ(std::memcmp(engine->data(), "PGFERRY1", 8), 0);
  EXPECT_EQ(header->layout_version, kPoolLayoutVersion);
  EXPECT_EQ(header->seal_count, static_cast<uint32_t>(kSealCount));
  EXPECT_EQ(header->nonce, pool->local().nonce);
  EXPECT_EQ(header->data_offset, kPoolDataOffset);
  EXPECT_EQ(header->data_size, kSize);
  EXPECT_EQ(header->generation, 1U);
  EXPECT_STREQ(header->agent_id, "prefill-0");
  engine->data()[kPoolDataOffset + kSize - 1] = std::byte{5};
  EXPECT_EQ(pool->data()[kSize - 1], std::byte{5});
}

TEST_F(ShmPoolTest, MemoryIsReservedAndTheModeIgnoresTheUmask) {
  const mode_t old_mask = umask(077);
  const auto pool = Make();
  umask(old_mask);
  EXPECT_EQ(StatFile().st_mode & 07777, 0660U);
  EXPECT_GE(StatFile().st_blocks * 512, kPoolDataOffset + kSize);
}

TEST_F(ShmPoolTest, IsRemovedOnRelease) {
  Make().reset();
  EXPECT_EQ(folder_.files(), 0U);
}

TEST_F(ShmPoolTest, ReleaseRemovesNoOtherFileOfThatName) {
  auto pool = Make();
  ASSERT_EQ(unlink(folder_.File(kFile).c_str()), 0);
  std::ofstream(folder_.File(kFile)) << "another";
  pool.reset();
  EXPECT_EQ(folder_.files(), 1U);
}

TEST_F(ShmPoolTest, RefusesBadNamesAndSizes) {
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string("../x"), std::string("a b"),
        std::string("a\0b", 3), std::string("é"), std::string(65, 'a')}) {
    EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize, name)),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  }
  EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize, "kv", "a/b")),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t size : {int64_t{-1}, int64_t{0}, int64_t{4095}, (int64_t{16} << 40) + 1, kMax,
                             std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, size)),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  }
  auto options = PoolOptions(folder_, kSize);
  options.dir = "/no-such-folder";
  EXPECT_THAT(ShmPool::CreateOrAdopt(std::move(options)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadHandle));
  EXPECT_EQ(folder_.files(), 0U);
}

TEST_F(ShmPoolTest, LivingAgentsPoolIsInUse) {
  const auto pool = Make();
  EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize)),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));
  EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize * 2)),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));
  EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize, "other")), IsOk());
}

TEST_F(ShmPoolTest, AdoptsItsOwnLeftoverWithBrokenSeals) {
  uint64_t nonce = 0;
  Seal seal;
  {
    const auto pool = Make();
    pool->data()[7] = std::byte{77};
    nonce = pool->local().nonce;
    seal = *pool->seals().Make();
    pool->LeaveBehind();
  }
  const ino_t inode = StatFile().st_ino;
  Poke(kSealTableOffset + off_t{8} * seal.index, seal.value);  // as kill -9 leaves it
  const auto pool = Make();
  EXPECT_TRUE(pool->adopted());
  EXPECT_EQ(StatFile().st_ino, inode);
  EXPECT_EQ(pool->data()[7], std::byte{77});
  EXPECT_NE(pool->local().nonce, nonce);
  const auto* words =
      reinterpret_cast<const SealWord*>(pool->data() - kPoolDataOffset + kSealTableOffset);
  for (int32_t i = 0; i < kSealCount; ++i) ASSERT_EQ(words[i], 0U);
  EXPECT_NE(pool->seals().Make()->value, seal.value);
}

TEST_F(ShmPoolTest, LeftoverThatDoesNotFitIsMadeAnew) {
  const auto expect_new = [this](const char* what) {
    const auto pool = Make();
    ASSERT_NE(pool, nullptr) << what;
    EXPECT_FALSE(pool->adopted()) << what;
    EXPECT_EQ(pool->data()[7], std::byte{0}) << what;
  };
  MakeLeftover(2 * kSize);
  expect_new("another size");
  MakeLeftover();
  Poke(offsetof(PoolHeader, layout_version), uint32_t{2});
  expect_new("another layout");
  MakeLeftover();
  Poke(offsetof(PoolHeader, magic), uint64_t{0});
  expect_new("half made");
  MakeLeftover();
  Poke(offsetof(PoolHeader, data_size), int64_t{4096});
  expect_new("a size that lies");
  MakeLeftover();
  ASSERT_EQ(truncate(folder_.File(kFile).c_str(), kPoolDataOffset), 0);
  expect_new("cut short");
  MakeLeftover();
  ASSERT_EQ(truncate(folder_.File(kFile).c_str(), 0), 0);
  expect_new("empty");
}

TEST_F(ShmPoolTest, RefusesWhatIsNotOurs) {
  const auto expect_exists = [this] {
    EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize)),
                StatusIs(absl::StatusCode::kAlreadyExists, Reason::kPoolExists));
  };
  const std::string path = folder_.File(kFile);
  std::ofstream(folder_.File("victim")) << "precious";
  ASSERT_EQ(symlink(folder_.File("victim").c_str(), path.c_str()), 0);
  expect_exists();
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(link(folder_.File("victim").c_str(), path.c_str()), 0);
  expect_exists();
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  expect_exists();
  ASSERT_EQ(rmdir(path.c_str()), 0);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_exists();
  ASSERT_EQ(unlink(path.c_str()), 0);
  std::string text;
  std::ifstream(folder_.File("victim")) >> text;
  EXPECT_EQ(text, "precious");
  if (geteuid() == 0) {
    MakeLeftover();
    ASSERT_EQ(chown(path.c_str(), 12345, static_cast<gid_t>(-1)), 0);
    expect_exists();
  }
}

TEST_F(ShmPoolTest, AnotherAgentsPoolOfTheSameFileNameIsNotTaken) {
  {
    auto pool = ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize, "b.c", "a"));
    ASSERT_THAT(pool, IsOk());
    (*pool)->LeaveBehind();
  }
  EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize, "c", "a.b")),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kPoolExists));
  EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize, "b.c", "a")), IsOk());
}

TEST_F(ShmPoolTest, TooLittleSpaceSaysHowMuchAndLeavesNothing) {
  auto options = PoolOptions(folder_, kSize);
  options.available_space = [](int) { return ShmSpace{ByteCount(1000), "test"}; };
  const auto pool = ShmPool::CreateOrAdopt(std::move(options));
  ASSERT_THAT(pool, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
  EXPECT_THAT(
      MetadataOf(pool.status()),
      testing::UnorderedElementsAre(Pair("needed_bytes", std::to_string(kPoolDataOffset + kSize)),
                                    Pair("available_bytes", "1000"), Pair("where", "test")));
  EXPECT_EQ(folder_.files(), 0U);
}

TEST_F(ShmPoolTest, MoreThanTheFileSystemHasIsRefusedByTheSystemToo) {
  struct statvfs system = {};
  ASSERT_EQ(statvfs(folder_.path().c_str(), &system), 0);
  const auto total = static_cast<int64_t>(system.f_blocks * system.f_frsize);
  if (total == 0 || total >= int64_t{8} << 40) GTEST_SKIP() << "the file system has no limit";
  for (const bool look_before : {true, false}) {
    auto options = PoolOptions(folder_, total + (1 << 20));
    if (!look_before) {
      options.available_space = [](int) {
        return ShmSpace{ByteCount(std::numeric_limits<int64_t>::max()), "test"};
      };
    }
    const auto pool = ShmPool::CreateOrAdopt(std::move(options));
    ASSERT_THAT(pool, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
    EXPECT_THAT(MetadataOf(pool.status()), Contains(Key("available_bytes")));
    EXPECT_EQ(folder_.files(), 0U);
  }
}

TEST_F(ShmPoolTest, EngineThatCutsItsPoolDoesNotEndTheAgent) {
  const auto pool = Make();
  const auto seal = pool->seals().Make();
  ASSERT_EQ(truncate(folder_.File(kFile).c_str(), 0), 0);
  pool->seals().Break(*seal);
  EXPECT_THAT(pool->seals().Make(), IsOk());
  pool->seals().BreakAll();
  EXPECT_TRUE(pool->damaged());
}

TEST_F(ShmPoolTest, KilledAgentsPoolIsAdoptedOrReaped) {
  for (const bool adopt : {true, false}) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      auto pool = ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize));
      if (!pool.ok()) _exit(1);
      (*pool)->data()[7] = std::byte{42};
      (void)(*pool)->seals().Make();
      if (write(ready[1], "x", 1) != 1) _exit(1);
      while (true) pause();
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    EXPECT_THAT(ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize)),
                StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));
    EXPECT_THAT(ListOrphanPools(folder_.path()), IsOkAndHolds(testing::IsEmpty()));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_THAT(ListOrphanPools(folder_.path()), IsOkAndHolds(testing::SizeIs(1)));
    if (adopt) {
      const auto pool = Make();
      EXPECT_TRUE(pool->adopted());
      EXPECT_EQ(pool->data()[7], std::byte{42});
      EXPECT_EQ(pool->seals().whole(), 0);
    } else {
      OrphanReaper reaper(folder_.path(), absl::ZeroDuration());
      EXPECT_THAT(reaper.Run(MonotonicTime()), IsOkAndHolds(testing::SizeIs(1)));
    }
    EXPECT_EQ(folder_.files(), 0U);
  }
}

}  // namespace
}  // namespace pageferry::transport
