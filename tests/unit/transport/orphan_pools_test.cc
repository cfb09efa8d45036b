#include "libs/transport/orphan_pools.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/transport/pool_file.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSize = 4096;
constexpr absl::Duration kGrace = absl::Seconds(30);

MonotonicTime At(double seconds) { return MonotonicTime() + absl::Seconds(seconds); }

class OrphanPoolsTest : public testing::Test {
 protected:
  std::unique_ptr<ShmPool> Make(const std::string& name, const std::string& agent = "a") {
    auto pool = ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize, name, agent));
    EXPECT_THAT(pool, IsOk());
    return *std::move(pool);
  }
  void MakeOrphan(const std::string& name) { Make(name)->LeaveBehind(); }

  ShmFolder folder_;
};

TEST_F(OrphanPoolsTest, ListsOnlyWhatNobodyHas) {
  const auto living = Make("living");
  MakeOrphan("dead");
  std::ofstream(folder_.File("other.file")) << "not ours";
  ASSERT_EQ(symlink("other.file", folder_.File("pageferry.a.link").c_str()), 0);
  ASSERT_EQ(mkdir(folder_.File("pageferry.a.folder").c_str(), 0700), 0);
  const auto orphans = ListOrphanPools(folder_.path());
  ASSERT_THAT(orphans,
              IsOkAndHolds(ElementsAre(Field(&OrphanPool::file_name, "pageferry.a.dead"))));
  EXPECT_EQ((*orphans)[0].size, ByteCount(kPoolDataOffset + kSize));
  EXPECT_THAT(ListOrphanPools("/no-such-folder"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadHandle));
}

TEST_F(OrphanPoolsTest, RemovesOnlyTheFileThatWasSeen) {
  MakeOrphan("dead");
  const OrphanPool seen = ListOrphanPools(folder_.path())->at(0);
  {
    const auto adopted = Make("dead");
    EXPECT_FALSE(RemoveOrphanPool(folder_.path(), seen));
  }
  const auto keeps_the_inode_number_taken = Make("other");
  MakeOrphan("dead");
  OrphanPool stale = seen;
  stale.inode = ListOrphanPools(folder_.path())->at(0).inode + 1;
  EXPECT_FALSE(RemoveOrphanPool(folder_.path(), stale));
  EXPECT_TRUE(RemoveOrphanPool(folder_.path(), ListOrphanPools(folder_.path())->at(0)));
  EXPECT_FALSE(RemoveOrphanPool(folder_.path(), stale));
  EXPECT_FALSE(RemoveOrphanPool(folder_.path(), {"../x", 1, ByteCount()}));
}

TEST_F(OrphanPoolsTest, ReaperWaitsForTheGraceTime) {
  OrphanReaper reaper(folder_.path(), kGrace);
  MakeOrphan("x");
  EXPECT_THAT(reaper.Run(At(100)), IsOkAndHolds(IsEmpty()));
  MakeOrphan("y");
  EXPECT_THAT(reaper.Run(At(120)), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(reaper.Run(At(130)),
              IsOkAndHolds(ElementsAre(Field(&OrphanPool::file_name, "pageferry.a.x"))));
  EXPECT_THAT(reaper.Run(At(149)), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(reaper.Run(At(150)), IsOkAndHolds(SizeIs(1)));
  EXPECT_EQ(folder_.files(), 0U);
}

TEST_F(OrphanPoolsTest, AdoptionStartsTheGraceTimeAnew) {
  OrphanReaper reaper(folder_.path(), kGrace);
  MakeOrphan("x");
  EXPECT_THAT(reaper.Run(At(0)), IsOkAndHolds(IsEmpty()));
  {
    const auto adopted = Make("x");
    EXPECT_TRUE(adopted->adopted());
    EXPECT_THAT(reaper.Run(At(31)), IsOkAndHolds(IsEmpty()));
    adopted->LeaveBehind();
  }
  EXPECT_THAT(reaper.Run(At(32)), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(reaper.Run(At(61)), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(reaper.Run(At(62)), IsOkAndHolds(SizeIs(1)));
}

// Agents that come and go, and reapers: an agent that has its pool has the file of that name, and
// only another agent's life keeps it from having one.
TEST_F(OrphanPoolsTest, ReapersAndAgentsRace) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> reapers;
  for (int r = 0; r < 2; ++r) {
    reapers.emplace_back([&] {
      OrphanReaper reaper(folder_.path(), absl::ZeroDuration());
      while (!stop) EXPECT_THAT(reaper.Run(MonotonicTime()), IsOk());
    });
  }
  std::vector<std::thread> agents;
  for (int a = 0; a < 2; ++a) {
    agents.emplace_back([&, a] {
      const std::string name = "pool" + std::to_string(a);
      for (int i = 0; i < 100; ++i) {
        const auto pool = Make(name);
        ASSERT_NE(pool, nullptr);
        const std::string path = folder_.File("pageferry.a." + name);
        const FileHandle file(open(path.c_str(), O_RDONLY));
        ASSERT_TRUE(file.valid());
        uint64_t nonce = 0;
        ASSERT_EQ(pread(file.fd(), &nonce, sizeof(nonce), offsetof(PoolHeader, nonce)), 8);
        EXPECT_EQ(nonce, pool->local().nonce);
        if (i % 2 == 0) pool->LeaveBehind();
      }
    });
  }
  for (std::thread& agent : agents) agent.join();
  stop = true;
  for (std::thread& reaper : reapers) reaper.join();
}

TEST_F(OrphanPoolsTest, AgentsOfOneNameRace) {
  std::atomic<int> living = 0;
  std::atomic<int> made = 0;
  std::vector<std::thread> agents;
  for (int a = 0; a < 4; ++a) {
    agents.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        auto pool = ShmPool::CreateOrAdopt(PoolOptions(folder_, kSize, "x", "a"));
        if (!pool.ok()) {
          EXPECT_THAT(pool, HasReason(Reason::kInUse));
          continue;
        }
        EXPECT_EQ(living++, 0);
        ++made;
        if (i % 2 == 0) (*pool)->LeaveBehind();
        --living;
      }
    });
  }
  for (std::thread& agent : agents) agent.join();
  EXPECT_GE(made, 1);
}

}  // namespace
}  // namespace pageferry::transport
