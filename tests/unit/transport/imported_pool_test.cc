#include "libs/transport/imported_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/transport/orphan_pools.h"
#include "tests/unit/transport/imported_fixture.h"

namespace pageferry::transport {
namespace {

using testing::HasSubstr;

constexpr const char* kControl = "pageferry.prefill-0.kv";

class ImportedPoolTest : public testing::Test {
 protected:
  std::unique_ptr<ImportedPool> Import(ImportOptions options) {
    auto pool = ImportedPool::Open(std::move(options));
    EXPECT_THAT(pool, IsOk());
    return pool.ok() ? *std::move(pool) : nullptr;
  }
  // The reason that import gives, which leaves nothing behind.
  std::string WhyNot(ImportOptions options) {
    const size_t files = folder_.files();
    const auto pool = ImportedPool::Open(std::move(options));
    EXPECT_THAT(pool, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadHandle));
    EXPECT_EQ(folder_.files(), files);
    return std::string(pool.status().message());
  }
  struct stat StatOf(const std::string& name) const {
    struct stat status = {};
    EXPECT_EQ(stat(folder_.File(name).c_str(), &status), 0) << name;
    return status;
  }

  ShmFolder folder_;
};

TEST_F(ImportedPoolTest, SharesTheEnginesMemoryAndKeepsSealsInAFileOfItsOwn) {
  const EngineMemory memory(folder_, "engine-kv", kBytes + kPage);
  ImportOptions options = ImportOf(folder_, "/engine-kv");
  options.data_offset = ByteCount(kPage);
  const auto pool = Import(std::move(options));
  EXPECT_EQ(pool->size(), ByteCount(kBytes));
  EXPECT_TRUE(pool->imported());
  EXPECT_TRUE(pool->writable());
  EXPECT_FALSE(pool->adopted());
  memory.data()[kPage] = std::byte{4};
  EXPECT_EQ(pool->data()[0], std::byte{4});
  pool->data()[kBytes - 1] = std::byte{5};
  EXPECT_EQ(memory.data()[kPage + kBytes - 1], std::byte{5});
  EXPECT_EQ(pool->local().shm_name, std::string("/") + kControl);
  EXPECT_EQ(pool->local().mapping_size, ByteCount(kPoolDataOffset));
  EXPECT_EQ(StatOf(kControl).st_size, kPoolDataOffset);
  ASSERT_THAT(pool->seals().Make(), IsOk());
  // What nobody but us may write is not in the engine's file.
  EXPECT_EQ(pool->local().data->inode, StatOf("engine-kv").st_ino);
}

TEST_F(ImportedPoolTest, GoesWithoutTheEnginesFile) {
  const EngineMemory memory(folder_, "engine-kv");
  auto pool = Import(ImportOf(folder_, "/engine-kv"));
  EXPECT_EQ(folder_.files(), 2U);
  pool.reset();
  EXPECT_EQ(folder_.files(), 1U);
  EXPECT_EQ(StatOf("engine-kv").st_size, kBytes);
}

TEST_F(ImportedPoolTest, TheControlFileOfADeadAgentIsAdoptedOrReaped) {
  const EngineMemory memory(folder_, "engine-kv");
  const auto leave_control = [&] {
    ShmPoolOptions options = PoolOptions(folder_, 0);
    options.control_only = true;
    auto control = ShmPool::CreateOrAdopt(std::move(options));
    ASSERT_THAT(control, IsOk());
    (*control)->LeaveBehind();
  };
  leave_control();
  auto pool = Import(ImportOf(folder_, "/engine-kv"));
  EXPECT_TRUE(pool->adopted());
  EXPECT_EQ(pool->seals().Make()->value >> kSealGenerationShift, 3U) << "one a life and an end";
  pool.reset();
  leave_control();
  OrphanReaper reaper(folder_.path(), absl::Seconds(30));
  const MonotonicTime start = MonotonicTime::FromNanoseconds(0);
  EXPECT_THAT(reaper.Run(start), IsOk());
  EXPECT_EQ(folder_.files(), 2U);
  EXPECT_THAT(reaper.Run(start + absl::Seconds(30)), IsOk());
  EXPECT_EQ(folder_.files(), 1U) << "the engine's own file is the engine's";
  EXPECT_EQ(StatOf("engine-kv").st_size, kBytes);
}

TEST_F(ImportedPoolTest, MemoryWithoutANameIsFoundThroughADescriptor) {
  const EngineMemory memory;
  ImportOptions options = ImportOf(folder_, "");
  options.memory_file = memory.path();
  const auto pool = Import(std::move(options));
  memory.data()[9] = std::byte{9};
  EXPECT_EQ(pool->data()[9], std::byte{9});
  EXPECT_EQ(pool->local().data->pid, getpid());
  EXPECT_EQ(pool->local().data->shm_name, "");
}

TEST_F(ImportedPoolTest, SealedMemoryCanBeImportedForReadingOnly) {
  const EngineMemory memory;
  memory.data()[1] = std::byte{3};
  memory.Unmap();
  ASSERT_EQ(fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK), 0);
  ImportOptions options = ImportOf(folder_, "");
  options.memory_file = memory.path();
  EXPECT_THAT(WhyNot(std::move(options)), HasSubstr("not permitted"));
  ImportOptions reading = ImportOf(folder_, "");
  reading.memory_file = memory.path();
  reading.read_only = true;
  const auto pool = Import(std::move(reading));
  EXPECT_FALSE(pool->writable());
  EXPECT_EQ(pool->data()[1], std::byte{3});
}

TEST_F(ImportedPoolTest, HolesAreFilledBeforeAnyWriteWouldNeedThem) {
  const EngineMemory memory(folder_, "engine-kv");
  ImportOptions reading = ImportOf(folder_, "/engine-kv");
  reading.read_only = true;
  Import(std::move(reading)).reset();
  EXPECT_EQ(StatOf("engine-kv").st_blocks, 0);
  ImportOptions full = ImportOf(folder_, "/engine-kv");
  full.available_space = [](int) { return ShmSpace{ByteCount(1000), "test"}; };
  const auto refused = ImportedPool::Open(std::move(full));
  ASSERT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
  EXPECT_EQ(MetadataOf(refused.status())["needed_bytes"], absl::StrCat(kBytes));
  EXPECT_EQ(folder_.files(), 1U);
  const auto pool = Import(ImportOf(folder_, "/engine-kv"));
  EXPECT_GE(StatOf("engine-kv").st_blocks * 512, kBytes);
  // All there: what is free does not matter any more.
  ImportOptions again = ImportOf(folder_, "/engine-kv", "again");
  again.available_space = [](int) { return ShmSpace{ByteCount(0), "test"}; };
  EXPECT_THAT(ImportedPool::Open(std::move(again)), IsOk());
}

TEST_F(ImportedPoolTest, I6_WhatIsNotMemoryIsRefused) {
  const EngineMemory memory(folder_, "short", kBytes - 1);
  EXPECT_THAT(WhyNot(ImportOf(folder_, "/short")), HasSubstr(absl::StrCat(kBytes - 1, " bytes")));
  EXPECT_THAT(WhyNot(ImportOf(folder_, "/none")), HasSubstr("No such file"));
  for (const char* const bad : {"short", "/../short", "/", "/a/b", "/."}) {
    EXPECT_THAT(WhyNot(ImportOf(folder_, bad)), HasSubstr("characters")) << bad;
  }
  ASSERT_EQ(symlink(folder_.File("short").c_str(), folder_.File("link").c_str()), 0);
  ASSERT_EQ(mkfifo(folder_.File("pipe").c_str(), 0600), 0);
  ASSERT_EQ(mkdir(folder_.File("folder").c_str(), 0700), 0);
  for (const char* const name : {"/link", "/pipe", "/folder"}) {
    EXPECT_THAT(WhyNot(ImportOf(folder_, name)), HasSubstr("not a plain file in memory")) << name;
  }
  const std::string disk = testing::TempDir() + "/imported_pool_test.disk";
  std::ofstream(disk) << std::string(kBytes, 'x');
  for (const std::string& path : {std::string("/dev/zero"), std::string("/proc/meminfo"), disk}) {
    ImportOptions options = ImportOf(folder_, "");
    options.memory_file = path;
    EXPECT_THAT(WhyNot(std::move(options)), HasSubstr("not a plain file in memory")) << path;
  }
  std::filesystem::remove(disk);
  for (const std::string& path :
       {std::string("relative"), std::string("/dev/shm/a\0b", 12), std::string("/proc/self/fd/1"),
        std::string("/dev/fd/1"), std::string("/proc/1/fd/99999")}) {
    ImportOptions options = ImportOf(folder_, "");
    options.memory_file = path;
    EXPECT_NE(WhyNot(std::move(options)), "");
  }
}

TEST_F(ImportedPoolTest, TheAgentsOwnPoolsAreNotImported) {
  auto own = ShmPool::CreateOrAdopt(PoolOptions(folder_, kBytes, "own"));
  ASSERT_THAT(own, IsOk());
  EXPECT_THAT(WhyNot(ImportOf(folder_, (*own)->local().shm_name)), HasSubstr("locked"));
}

TEST_F(ImportedPoolTest, BadFieldsAreNamed) {
  const EngineMemory memory(folder_, "engine-kv");
  const auto field = [](ImportOptions options) {
    const auto pool = ImportedPool::Open(std::move(options));
    EXPECT_THAT(pool, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
    return MetadataOf(pool.status())["field"];
  };
  EXPECT_EQ(field(ImportOf(folder_, "")), "handle");
  EXPECT_EQ(field(ImportOf(folder_, "/engine-kv", "a/b")), "name");
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{4095}, (int64_t{16} << 40) + 1}) {
    ImportOptions options = ImportOf(folder_, "/engine-kv");
    options.size = ByteCount(size);
    EXPECT_EQ(field(std::move(options)), "size_bytes");
  }
  for (const int64_t offset : {int64_t{-kPage}, int64_t{1}, int64_t{kPage + 64}}) {
    ImportOptions options = ImportOf(folder_, "/engine-kv");
    options.data_offset = ByteCount(offset);
    EXPECT_EQ(field(std::move(options)), "data_offset_bytes");
  }
  ImportOptions far = ImportOf(folder_, "/engine-kv");
  far.data_offset = ByteCount((std::numeric_limits<int64_t>::max() / kPage) * kPage);
  EXPECT_THAT(WhyNot(std::move(far)), HasSubstr("would end at"));
  EXPECT_EQ(folder_.files(), 1U);
}

TEST_F(ImportedPoolTest, HugePagesAreWhatTheEngineSaysOrRefused) {
  const EngineMemory memory(folder_, "engine-kv");
  ImportOptions options = ImportOf(folder_, "/engine-kv");
  options.huge = true;
  EXPECT_THAT(WhyNot(std::move(options)), HasSubstr("hugetlbfs"));
  const FileHandle huge(memfd_create("huge", MFD_HUGETLB | MFD_CLOEXEC));
  if (!huge.valid() || ftruncate(huge.fd(), 2 * kHugePage) != 0 ||
      posix_fallocate(huge.fd(), 0, 2 * kHugePage) != 0) {
    GTEST_SKIP() << "this host has no free huge pages (vm.nr_hugepages)";
  }
  ImportOptions there = ImportOf(folder_, "");
  there.memory_file = PathOfDescriptor(getpid(), huge.fd());
  there.huge = true;
  there.size = ByteCount(kHugePage + kPage);  // the mapping is in whole pages all the same
  const auto pool = Import(std::move(there));
  EXPECT_EQ(pool->huge().bytes, pool->size());
  pool->data()[kHugePage] = std::byte{1};
  ASSERT_EQ(ftruncate(huge.fd(), 0), 0);
  pool->data()[0] = std::byte{1};
  EXPECT_TRUE(pool->damaged());
}

TEST_F(ImportedPoolTest, I6_AnEngineThatCutsItsMemoryDoesNotEndTheAgent) {
  const EngineMemory memory(folder_, "engine-kv");
  const auto pool = Import(ImportOf(folder_, "/engine-kv"));
  EXPECT_FALSE(pool->damaged());
  ASSERT_EQ(truncate(folder_.File("engine-kv").c_str(), 0), 0);
  pool->data()[kBytes / 2] = std::byte{1};
  EXPECT_TRUE(pool->damaged());
  EXPECT_THAT(pool->seals().Make(), IsOk());
}

TEST_F(ImportedPoolTest, IdentityTellsMemoryApartAndNotNames) {
  const EngineMemory first(folder_, "engine-kv");
  const auto pool = Import(ImportOf(folder_, "/engine-kv"));
  const auto same = ImportedPool::Identify(ImportOf(folder_, "/engine-kv"));
  ASSERT_THAT(same, IsOk());
  EXPECT_EQ(*same, pool->identity());
  ASSERT_EQ(unlink(folder_.File("engine-kv").c_str()), 0);
  const EngineMemory second(folder_, "engine-kv");
  const auto other = ImportedPool::Identify(ImportOf(folder_, "/engine-kv"));
  ASSERT_THAT(other, IsOk());
  EXPECT_NE(*other, pool->identity());
}

}  // namespace
}  // namespace pageferry::transport
