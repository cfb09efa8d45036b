#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/topology.h"
#include "services/transfer-agent/ports.h"
#include "services/transfer-agent/profile.h"

/// Which ranks may meet, and which rank is to be asked. Pure.
namespace pageferry::agent {

/// Says whether pages can go from `prefill` to `decode`, both as Hello told them.
/// kUnimplemented, UNSUPPORTED with "prefill_shape", "decode_shape": the shapes differ in more than
/// dp.
/// kFailedPrecondition, ENGINES_INCOMPATIBLE with "field", "have" (decode), "got" (prefill):
/// another namespace, a wrong role, a coordinate that differs in more than dp, or caches that
/// differ in anything but where they lie. Do not retry.
absl::Status EnginesMatch(const EngineInfo& prefill, const EngineInfo& decode);

/// How an engine spreads its rooms over DP ranks, as it registered.
enum class DpPolicy : int8_t { kRoomModulo, kDirectory };

/// Where the number of the DP rank came from. With kDirectory it is not known yet: the caller looks
/// the room up (LookupRooms) and puts it into the coordinate.
enum class DpSource : int8_t { kHint, kOnlyOne, kRoomModulo, kDirectory };

struct PrefillRank {
  RankCoordinate coordinate;
  DpSource dp_source = DpSource::kOnlyOne;
};

/// The prefill rank that the rank of `query` receives from, where the prefill engine has the shape
/// `prefill`. kUnimplemented, UNSUPPORTED: the shapes differ in more than dp. kInvalidArgument,
/// INVALID_FIELD: the hint lies outside the shape, or the room is negative.
absl::StatusOr<PrefillRank> PrefillCoordinateFor(const RankQuery& query,
                                                 const ParallelShape& prefill, DpPolicy policy);

}  // namespace pageferry::agent
