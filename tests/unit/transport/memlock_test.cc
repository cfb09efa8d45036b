#include "libs/transport/memlock.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/mlock_is_real.h"
#include "tests/unit/transport/imported_fixture.h"

namespace pageferry::transport {
namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

TEST(Memlock, NamesTheBytesAndTheLimit) {
  const MemlockState state{.limit = ByteCount(8192), .locked = ByteCount(4096)};
  EXPECT_THAT(CheckMemlock(ByteCount(4096), state), IsOk());
  const absl::Status over = CheckMemlock(ByteCount(4097), state);
  EXPECT_THAT(over, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
  EXPECT_THAT(MetadataOf(over),
              UnorderedElementsAre(Pair("needed_bytes", "4097"), Pair("available_bytes", "4096"),
                                   Pair("where", "RLIMIT_MEMLOCK"), Pair("limit_bytes", "8192"),
                                   Pair("locked_bytes", "4096")));
  EXPECT_THAT(std::string(over.message()), testing::HasSubstr("needs 4097 bytes"));
}

TEST(Memlock, WhoIsExemptOrUnlimitedIsNotHeldBack) {
  const ByteCount much(int64_t{1} << 50);
  EXPECT_THAT(CheckMemlock(much, {.limit = std::nullopt}), IsOk());
  EXPECT_THAT(CheckMemlock(much, {.limit = ByteCount(1), .exempt = true}), IsOk());
  // Locked more than the limit allows, before that was lowered.
  EXPECT_FALSE(CheckMemlock(ByteCount(1), {.limit = ByteCount(1), .locked = much}).ok());
}

// Runs `body` on a thread without CAP_IPC_LOCK, with a limit of `bytes`.
template <class Body>
void Limited(int64_t bytes, Body body) {
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const struct rlimit low = {.rlim_cur = static_cast<rlim_t>(bytes), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &low), 0);
  std::thread([&] {
    __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct sets[2] = {};
    EXPECT_EQ(syscall(SYS_capget, &header, sets), 0);
    sets[0].effective &= ~(1U << CAP_IPC_LOCK);
    EXPECT_EQ(syscall(SYS_capset, &header, sets), 0);
    body();
  }).join();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

TEST(Memlock, PoolsAreLockedOrRefusedBeforeTheyAreMade) {
  if (!MlockIsReal()) GTEST_SKIP() << "mlock() locks nothing in this process";
  struct rlimit system = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &system), 0);
  if (system.rlim_max < kBytes) GTEST_SKIP() << "this process may lock " << system.rlim_max;
  const ShmFolder folder;
  const EngineMemory memory(folder, "engine-kv");
  const auto make = [&] {
    ShmPoolOptions options = PoolOptions(folder, kBytes);
    options.lock = true;
    return ShmPool::CreateOrAdopt(std::move(options));
  };
  const auto import = [&] {
    ImportOptions options = ImportOf(folder, "/engine-kv", "imported");
    options.lock = true;
    return ImportedPool::Open(std::move(options));
  };
  Limited(kBytes - kPage, [&] {
    EXPECT_FALSE(ReadMemlock().exempt);
    EXPECT_EQ(ReadMemlock().limit, ByteCount(kBytes - kPage));
    EXPECT_THAT(make(), StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
    EXPECT_THAT(import(), StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
    EXPECT_EQ(folder.files(), 1U);
  });
  Limited(kBytes, [&] {
    const ByteCount before = ReadMemlock().locked;
    auto pool = make();
    ASSERT_THAT(pool, IsOk());
    EXPECT_EQ(ReadMemlock().locked, before + ByteCount(kBytes));
    EXPECT_THAT(import(), StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
    (*pool).reset();
    EXPECT_EQ(ReadMemlock().locked, before);
    EXPECT_THAT(import(), IsOk());
  });
}

}  // namespace
}  // namespace pageferry::transport
