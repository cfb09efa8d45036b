// Never OK with bytes that changed after the seal was broken.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"
#include "libs/transport/local_transport.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kPages = 8;
constexpr std::byte kGood{0x11};
constexpr std::byte kScribble{0xee};

// Breaks the seal before or after the copy of slice `when` and scribbles over all pages.
void BreakAt(int when, bool after_copy) {
  LocalPair* current = nullptr;
  Seal seal;
  int slice = 0;
  const auto hook = [&](uint64_t, absl::Span<const Segment>) {
    if (slice++ != when) return;
    current->source->seals().Break(seal);
    std::fill_n(current->source->data(), kPages * kPage, kScribble);
  };
  LocalTransportOptions options;
  options.copy_threads = 1;
  options.slice_size = ByteCount(kPage);
  (after_copy ? options.before_check : options.before_copy) = hook;
  LocalPair pair(kPages * kPage, std::move(options));
  current = &pair;
  std::fill_n(pair.source->data(), kPages * kPage, kGood);
  seal = pair.MakeSeal();
  WriteResult result;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, kPages}}, seal), result.Callback());
  if (when < kPages) {
    EXPECT_THAT(result.Wait(), StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
    EXPECT_EQ(slice, when + 1) << "it went on after the break";
  } else {
    EXPECT_THAT(result.Wait(), IsOk());
    EXPECT_TRUE(std::all_of(pair.target.begin(), pair.target.end(),
                            [](std::byte byte) { return byte == kGood; }));
  }
}

TEST(LocalSeal, BrokenAtEverySliceBoundary) {
  for (int when = 0; when <= kPages; ++when) {
    BreakAt(when, /*after_copy=*/false);
    BreakAt(when, /*after_copy=*/true);
  }
}

TEST(LocalSeal, BrokenBeforeTheWrite) {
  LocalPair pair(kPages * kPage);
  const Seal seal = pair.MakeSeal();
  pair.source->seals().Break(seal);
  const Seal next = pair.MakeSeal();
  ASSERT_EQ(next.index, seal.index);  // the word is whole again, but for another room
  WriteResult result;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, 1}}, seal), result.Callback());
  EXPECT_THAT(result.Wait(), StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
}

TEST(LocalSeal, NoValueIsNeverWhole) {
  LocalPair pair(kPages * kPage);
  WriteResult result;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, 1}}, Seal{5, 0}),
                   result.Callback());
  EXPECT_THAT(result.Wait(), HasReason(Reason::kSealBroken));
}

TEST(LocalSeal, VoidWhenTheEngineDeclaresTheAgentDead) {
  LocalPair pair(kPages * kPage);
  const Seal seal = pair.MakeSeal();
  auto* header = reinterpret_cast<PoolHeader*>(pair.source->data() - kPoolDataOffset);
  header->generation.fetch_add(1);
  WriteResult result;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, 1}}, seal), result.Callback());
  EXPECT_THAT(result.Wait(), StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
}

TEST(LocalSeal, VoidWhenTheNextAgentAdoptsThePool) {
  LocalPair pair(kPages * kPage);
  const Seal seal = pair.MakeSeal();
  pair.source->LeaveBehind();
  pair.source.reset();
  auto adopted = ShmPool::CreateOrAdopt(PoolOptions(pair.folder, kPages * kPage));
  ASSERT_THAT(adopted, IsOk());
  ASSERT_TRUE((*adopted)->adopted());
  WriteResult result;
  pair.peer->Write(pair.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, 1}}, seal), result.Callback());
  EXPECT_THAT(result.Wait(), StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
}

// A source that takes its pages back at any moment and writes something else at once.
TEST(LocalSeal, RaceOfCopyAndReuse) {
  constexpr int64_t kRacePages = 64;
  constexpr int kRounds = 300;
  LocalPair pair(kRacePages * kPage, {.copy_threads = 2, .slice_size = ByteCount(4 * kPage)});
  std::atomic<int> round = 0;
  std::atomic<uint64_t> value = 0;
  std::atomic<int32_t> index = 0;
  std::thread source([&] {
    for (int r = 1; r <= kRounds; ++r) {
      while (round.load() != r) std::this_thread::yield();
      // Somewhere within the copy.
      for (int spin = 0; spin < (r * 37) % 4000; ++spin) {
        [[maybe_unused]] const volatile int waste = spin;
      }
      pair.source->seals().Break({index.load(), value.load()});
      std::memset(pair.source->data(), 0xee, kRacePages * kPage);
      round = -r;
    }
  });
  int ok = 0;
  for (int r = 1; r <= kRounds; ++r) {
    std::memset(pair.source->data(), 0x11, kRacePages * kPage);
    const Seal seal = pair.MakeSeal();
    index = seal.index;
    value = seal.value;
    WriteResult result;
    pair.peer->Write(pair.MakeBatch({Entry(0, 0, kPage)}, {{0, 0, kRacePages}}, seal),
                     result.Callback());
    round = r;
    const absl::Status status = result.Wait();
    if (status.ok()) {
      ++ok;
      ASSERT_TRUE(std::all_of(pair.target.begin(), pair.target.end(),
                              [](std::byte byte) { return byte == kGood; }))
          << "round " << r;
    } else {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
    }
    while (round.load() != -r) std::this_thread::yield();
  }
  source.join();
  RecordProperty("rounds_that_ended_ok", ok);
}

}  // namespace
}  // namespace pageferry::transport
