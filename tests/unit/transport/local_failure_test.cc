// A neighbour that cuts its shared memory short harms its own rooms only.
#include <unistd.h>

#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "libs/transport/local_transport.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kBytes = 256 * kPage;

std::string PoolPath(const LocalPair& pair, const ShmPool& pool) {
  return pair.folder.File(pool.local().shm_name.substr(1));
}

absl::Status WriteAll(LocalPair& pair, RegionId target = kTargetRegion) {
  WriteResult result;
  EntryPair entry = Entry(0, 0, kPage);
  entry.target_region = target;
  pair.peer->Write(pair.MakeBatch({entry}, {{0, 0, kBytes / kPage}}, pair.MakeSeal()),
                   result.Callback());
  return result.Wait();
}

TEST(LocalFailure, SourceCutBeforeTheWrite) {
  for (const int64_t size : {int64_t{0}, int64_t{4096}, kPoolDataOffset, kPoolDataOffset + kPage}) {
    LocalPair pair(kBytes);
    const Seal seal = pair.MakeSeal();
    ASSERT_EQ(truncate(PoolPath(pair, *pair.source).c_str(), size), 0);
    WriteResult result;
    pair.peer->Write(pair.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, kBytes / kPage}}, seal),
                     result.Callback());
    EXPECT_FALSE(result.Wait().ok()) << size;
    // Grown again it has the old size, but what was lost stays lost.
    ASSERT_EQ(truncate(PoolPath(pair, *pair.source).c_str(), kPoolDataOffset + kBytes), 0);
    WriteResult again;
    pair.peer->Write(pair.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, kBytes / kPage}}, seal),
                     again.Callback());
    EXPECT_FALSE(again.Wait().ok()) << size;
  }
}

TEST(LocalFailure, SourceCutInTheMiddleOfACopy) {
  std::string path;
  int slices = 0;
  LocalPair pair(kBytes, {.copy_threads = 1,
                          .slice_size = ByteCount(16 * kPage),
                          .before_copy = [&](uint64_t, absl::Span<const Segment>) {
                            if (++slices == 5) {
                              EXPECT_EQ(truncate(path.c_str(), kPoolDataOffset), 0);
                            }
                          }});
  path = PoolPath(pair, *pair.source);
  EXPECT_THAT(WriteAll(pair), StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
  EXPECT_EQ(slices, 5);
}

TEST(LocalFailure, OtherPeersGoOn) {
  LocalPair bad(kBytes);
  auto good = ShmPool::CreateOrAdopt(PoolOptions(bad.folder, kBytes, "kv", "prefill-1"));
  ASSERT_THAT(good, IsOk());
  std::memset((*good)->data(), 9, kBytes);
  auto peer = bad.transport->Connect(
      {.name = "prefill-1",
       .regions = {{.id = kSourceRegion, .size = ByteCount(kBytes), .local = (*good)->local()}}});
  ASSERT_THAT(peer, IsOk());
  ASSERT_EQ(truncate(PoolPath(bad, *bad.source).c_str(), kPoolDataOffset), 0);
  EXPECT_THAT(WriteAll(bad), StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
  const auto seal = (*good)->seals().Make();
  WriteResult result;
  (*peer)->Write(bad.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, kBytes / kPage}}, *seal),
                 result.Callback());
  EXPECT_THAT(result.Wait(), IsOk());
  EXPECT_EQ(bad.target[kBytes - 1], std::byte{9});
}

TEST(LocalFailure, TargetsEngineCutsItsOwnPool) {
  LocalPair pair(kBytes);
  auto target = ShmPool::CreateOrAdopt(PoolOptions(pair.folder, kBytes, "kv", "decode-0"));
  ASSERT_THAT(target, IsOk());
  ASSERT_THAT(pair.transport->MapRegion(
                  {.id = RegionId(7), .data = (*target)->data(), .size = (*target)->size()}),
              IsOk());
  EXPECT_THAT(WriteAll(pair, RegionId(7)), IsOk());
  ASSERT_EQ(truncate(PoolPath(pair, **target).c_str(), kPoolDataOffset), 0);
  EXPECT_THAT(WriteAll(pair, RegionId(7)),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
  EXPECT_TRUE((*target)->damaged());
  EXPECT_THAT(WriteAll(pair), IsOk());
}

}  // namespace
}  // namespace pageferry::transport
