// The local way to memory that the engine owns: data and seals in two files.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "libs/transport/local_transport.h"
#include "tests/unit/transport/imported_fixture.h"

namespace pageferry::transport {
namespace {

class LocalImportedTest : public testing::Test {
 protected:
  LocalImportedTest() : target_(kBytes) {
    EXPECT_THAT(transport_.MapRegion(
                    {.id = kTargetRegion, .data = target_.data(), .size = ByteCount(kBytes)}),
                IsOk());
  }

  void Import(ImportOptions options) {
    options.read_only = true;  // as a prefill engine does
    auto pool = ImportedPool::Open(std::move(options));
    ASSERT_THAT(pool, IsOk());
    pool_ = *std::move(pool);
    seal_ = *pool_->seals().Make();
  }
  RemoteRegion Region() const {
    return {.id = kSourceRegion, .size = pool_->size(), .local = pool_->local()};
  }
  absl::Status Connect(const RemoteRegion& region) {
    auto peer = transport_.Connect({.name = "prefill-0", .regions = {region}});
    if (!peer.ok()) return peer.status();
    peer_ = *std::move(peer);
    return absl::OkStatus();
  }
  absl::Status Copy() {
    Batch batch;
    batch.flow = 1;
    batch.steps.push_back(
        {std::make_shared<const std::vector<EntryPair>>(std::vector<EntryPair>{Entry(0, 0, kPage)}),
         {{0, 0, kBytes / kPage}}});
    batch.seal = {kSourceRegion, seal_.index, seal_.value};
    WriteResult result;
    peer_->Write(std::move(batch), result.Callback());
    return result.Wait();
  }
  bool TargetIs(const EngineMemory& memory, int64_t offset = 0) const {
    return std::memcmp(target_.data(), memory.data() + offset, kBytes) == 0;
  }
  static void Fill(const EngineMemory& memory, int64_t size = kBytes) {
    for (int64_t i = 0; i < size; ++i) memory.data()[i] = static_cast<std::byte>(i * 7 + i / 251);
  }

  ShmFolder folder_;
  std::vector<std::byte> target_;
  LocalTransport transport_{{.slice_size = ByteCount(16 * kPage), .shm_dir = folder_.path()}};
  std::unique_ptr<ImportedPool> pool_;
  Seal seal_;
  std::unique_ptr<TransportPeer> peer_;
};

TEST_F(LocalImportedTest, CopiesByNameFromAnOffset) {
  const EngineMemory memory(folder_, "engine-kv", kBytes + 3 * kPage);
  Fill(memory, kBytes + 3 * kPage);
  ImportOptions options = ImportOf(folder_, "/engine-kv");
  options.data_offset = ByteCount(3 * kPage);
  Import(std::move(options));
  RemoteRegion region = Region();
  region.local->data->pid = 1;  // of no use: the name is enough
  ASSERT_THAT(Connect(region), IsOk());
  EXPECT_THAT(Copy(), IsOk());
  EXPECT_TRUE(TargetIs(memory, 3 * kPage));
}

TEST_F(LocalImportedTest, CopiesThroughTheAgentsDescriptor) {
  const EngineMemory memory;
  Fill(memory);
  ImportOptions options = ImportOf(folder_, "");
  options.memory_file = memory.path();
  Import(std::move(options));
  ASSERT_THAT(Connect(Region()), IsOk());
  EXPECT_THAT(Copy(), IsOk());
  EXPECT_TRUE(TargetIs(memory));
}

TEST_F(LocalImportedTest, ANameThatIsOtherMemoryNowIsNotFollowed) {
  const EngineMemory memory(folder_, "engine-kv");
  Fill(memory);
  Import(ImportOf(folder_, "/engine-kv"));
  ASSERT_EQ(unlink(folder_.File("engine-kv").c_str()), 0);
  const EngineMemory other(folder_, "engine-kv");
  ASSERT_THAT(Connect(Region()), IsOk());
  EXPECT_THAT(Copy(), IsOk());
  EXPECT_TRUE(TargetIs(memory));
}

TEST_F(LocalImportedTest, I1_BrokenSealFailsTheWrite) {
  const EngineMemory memory(folder_, "engine-kv");
  Import(ImportOf(folder_, "/engine-kv"));
  ASSERT_THAT(Connect(Region()), IsOk());
  pool_->seals().Break(seal_);
  EXPECT_THAT(Copy(), StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
  // And so does the end of the pool: nobody will break them later.
  seal_ = *pool_->seals().Make();
  EXPECT_THAT(Copy(), IsOk());
  pool_.reset();
  EXPECT_THAT(Copy(), StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
}

TEST_F(LocalImportedTest, I2_CutMemoryOrCutSealsAreNeverSuccess) {
  const EngineMemory memory(folder_, "engine-kv");
  Import(ImportOf(folder_, "/engine-kv"));
  ASSERT_THAT(Connect(Region()), IsOk());
  ASSERT_EQ(truncate(folder_.File("engine-kv").c_str(), kBytes / 2), 0);
  EXPECT_THAT(Copy(), StatusIs(absl::StatusCode::kUnavailable, Reason::kTransport));
  ASSERT_EQ(truncate(folder_.File("engine-kv").c_str(), kBytes), 0);
  ASSERT_THAT(Connect(Region()), IsOk());
  ASSERT_EQ(truncate(folder_.File(pool_->local().shm_name.substr(1)).c_str(), 0), 0);
  EXPECT_FALSE(Copy().ok());
}

TEST_F(LocalImportedTest, I6_WhatAPeerTellsIsNotTrusted) {
  const EngineMemory memory(folder_, "engine-kv");
  const EngineMemory other(folder_, "other-kv");
  Import(ImportOf(folder_, "/engine-kv"));
  const auto refused = [&](const std::function<void(LocalMapping&)>& change) {
    RemoteRegion region = Region();
    change(*region.local);
    return StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport)
        .operator testing::Matcher<const absl::Status&>()
        .Matches(Connect(region));
  };
  EXPECT_TRUE(refused([](auto& l) { ++l.data->inode; }));
  EXPECT_TRUE(refused([](auto& l) { ++l.data->device; }));
  EXPECT_TRUE(refused([](auto& l) { l.data->offset = ByteCount(kPage); }));
  EXPECT_TRUE(refused([](auto& l) { l.data->offset = ByteCount(-kPage); }));
  EXPECT_TRUE(refused([](auto& l) { l.data->offset = ByteCount(1); }));
  EXPECT_TRUE(refused([](auto& l) { l.data.reset(); }));
  EXPECT_TRUE(refused([](auto& l) { ++l.nonce; }));
  EXPECT_TRUE(refused([](auto& l) { l.mapping_size = ByteCount(kPage); }));
  EXPECT_TRUE(refused([](auto& l) {
    l.data->shm_name = "/other-kv";
    l.data->fd = 0;
  }));
  // The seals of a whole pool do not vouch for data elsewhere.
  auto whole = ShmPool::CreateOrAdopt(PoolOptions(folder_, kBytes, "whole"));
  ASSERT_THAT(whole, IsOk());
  EXPECT_TRUE(refused([&](auto& l) {
    const LocalData data = *l.data;
    l = (*whole)->local();
    l.data = data;
  }));
  EXPECT_THAT(Connect(Region()), IsOk());
}

}  // namespace
}  // namespace pageferry::transport
