#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/bootstrap/records.h"

/// Short ways to make records, for the tests of this folder.
namespace pageferry::bootstrap {

inline constexpr MonotonicTime kStart = MonotonicTime::FromNanoseconds(1'000'000'000'000);

inline MonotonicTime At(double seconds) { return kStart + absl::Seconds(seconds); }

inline EngineKey Key(const std::string& engine = "engine") {
  return {NamespaceName("default"), EngineId(engine)};
}

inline Incarnation Life(int64_t start, uint64_t nonce = 0, const std::string& agent = "agent") {
  return {start, nonce, AgentId(agent)};
}

/// A claim of `coordinate` in a 2x1x4x2 engine by a life that started at `start`, for 3 s.
inline Claim MakeClaim(RankCoordinate coordinate = {}, int64_t start = 1, int64_t last_epoch = 0) {
  Claim claim;
  claim.key = Key();
  claim.traits.shape = {.dp = 2, .cp = 1, .tp = 4, .pp = 2};
  claim.traits.profile.page_tokens = 16;
  claim.coordinate = coordinate;
  claim.incarnation = Life(start);
  claim.info.agent = claim.incarnation.agent;
  claim.info.endpoint = {"10.0.0.1", 7000};
  claim.ttl = absl::Seconds(3);
  claim.last_epoch = Epoch(last_epoch);
  return claim;
}

}  // namespace pageferry::bootstrap
