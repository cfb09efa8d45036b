#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/unit/transfer-agent/core_world.h"

namespace pageferry::agent {
namespace {

constexpr int kWorlds = 24;
constexpr int kSteps = 12'000;

/// The worlds run once; each test looks at its own invariant. PAGEFERRY_SEED repeats one run.
class CoreProperty : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* given = std::getenv("PAGEFERRY_SEED");
    const uint64_t first = given == nullptr ? 20'261'201 : std::strtoull(given, nullptr, 10);
    const int worlds = given == nullptr ? kWorlds : 1;
    for (uint64_t seed = first; seed < first + static_cast<uint64_t>(worlds); ++seed) {
      World world(seed);
      for (int step = 0; step < kSteps; ++step) world.Step();
      world.Quiesce();
      for (const auto& [what, count] : world.counts) counts_[what] += count;
      for (const auto& [invariant, how] : world.violations) {
        for (const std::string& one : how) {
          violations_[invariant].push_back("seed " + std::to_string(seed) + ": " + one);
        }
      }
    }
    std::cout << "seeds from " << first << "\n";
    for (const auto& [what, count] : counts_) std::cout << "  " << what << " " << count << "\n";
  }

  static void ExpectHolds(const std::string& invariant) {
    EXPECT_TRUE(violations_[invariant].empty()) << absl::StrJoin(violations_[invariant], "\n");
  }

  static inline std::map<std::string, int64_t> counts_;
  static inline std::map<std::string, std::vector<std::string>> violations_;
};

TEST_F(CoreProperty, TheWorldsAreLively) {
  for (const char* what :
       {"decode SUCCESS drained", "prefill SUCCESS drained", "decode FAILED PEER_ABORTED",
        "decode FAILED PEER_ENGINE_FAILED", "decode FAILED DEADLINE", "decode FAILED PEER_LOST",
        "decode FAILED SEAL_BROKEN", "decode FAILED STALE_ATTEMPT", "prefill FAILED STALE_ATTEMPT",
        "prefill FAILED PEER_ABORTED", "prefill FAILED PEER_LOST", "prefill FAILED DEADLINE",
        "decode FAILED TRANSPORT", "seals broken under a copy", "forged frames", "commands refused",
        "sessions cut", "engines lost"}) {
    EXPECT_GT(counts_[what], 0) << what;
  }
  EXPECT_GT(counts_["decode SUCCESS drained"], counts_["receives"] / 10);
  // Engines here keep to the rules, so that no room may fail for breaking them.
  for (const char* reason : {"PAGE_COUNT_MISMATCH", "OUT_OF_ORDER", "BAD_PAGES", "INVALID_FIELD"}) {
    EXPECT_EQ(counts_[std::string("decode FAILED ") + reason], 0) << reason;
    EXPECT_EQ(counts_[std::string("prefill FAILED ") + reason], 0) << reason;
  }
}

TEST_F(CoreProperty, I1_NoByteChangesAfterDrained) { ExpectHolds("I1"); }
TEST_F(CoreProperty, I2_SuccessMeansEveryByteInPlace) { ExpectHolds("I2"); }
TEST_F(CoreProperty, I3_NothingComesAfterTheEnd) { ExpectHolds("I3"); }
TEST_F(CoreProperty, I4_EveryRoomEndsAndSaysWhy) { ExpectHolds("I4"); }
TEST_F(CoreProperty, I5_FramesOfOtherAttemptsAndSessionsChangeNothing) { ExpectHolds("I5"); }
TEST_F(CoreProperty, I7_ADuplicateEndsNothing) { ExpectHolds("I7"); }
TEST_F(CoreProperty, I9_AtTheEndNothingIsHeld) { ExpectHolds("I9"); }
TEST_F(CoreProperty, I12_EachItemIsWrittenOnce) { ExpectHolds("I12"); }

}  // namespace
}  // namespace pageferry::agent
