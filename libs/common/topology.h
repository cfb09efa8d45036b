#pragma once

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/common/ids.h"

namespace pageferry {

/// Bounds of a shape: each size is in [1, kMaxParallelSize], their product at most kMaxRanks.
inline constexpr int64_t kMaxParallelSize = 65'536;
inline constexpr int64_t kMaxRanks = 1'048'576;

/// The sizes of data, context, tensor and pipeline parallelism of one engine. Value type.
struct ParallelShape {
  int64_t dp = 1;
  int64_t cp = 1;
  int64_t tp = 1;
  int64_t pp = 1;

  friend auto operator<=>(const ParallelShape&, const ParallelShape&) = default;
};

/// The place of one rank in a shape; each part is in [0, size). Value type. Ordered by dp, cp, tp,
/// pp, which is not the order of ranks.
struct RankCoordinate {
  int64_t dp = 0;
  int64_t cp = 0;
  int64_t tp = 0;
  int64_t pp = 0;

  friend auto operator<=>(const RankCoordinate&, const RankCoordinate&) = default;
};

/// kInvalidArgument, INVALID_FIELD: a size or the product is out of bounds. Do not retry.
absl::Status ValidateShape(const ParallelShape& shape);

/// How many ranks a valid `shape` has; saturates for one that is not.
int64_t RankCount(const ParallelShape& shape);

/// kInvalidArgument, INVALID_FIELD: `coordinate` lies outside `shape`, which must be valid.
absl::Status ValidateCoordinate(const RankCoordinate& coordinate, const ParallelShape& shape);

/// The flat index of `coordinate`, in [0, RankCount): tp changes fastest, then cp, then pp, and dp
/// slowest, so that one DP rank's pipeline is contiguous. Both must be valid.
RankIndex ToRankIndex(const RankCoordinate& coordinate, const ParallelShape& shape);

/// The inverse of ToRankIndex; `rank` is in [0, RankCount) and `shape` valid.
RankCoordinate ToCoordinate(RankIndex rank, const ParallelShape& shape);

/// "dp0 cp0 tp3 pp1", for messages, logs and metadata.
std::string ToString(const RankCoordinate& coordinate);
/// "dp2 cp1 tp4 pp2".
std::string ToString(const ParallelShape& shape);

/// Reads what ToString writes: the four parts in this order, plain decimal digits, single blanks.
/// kInvalidArgument, INVALID_FIELD: anything else, or a part above kMaxParallelSize.
absl::StatusOr<RankCoordinate> ParseRankCoordinate(absl::string_view text);
/// As above, and the shape must be valid.
absl::StatusOr<ParallelShape> ParseParallelShape(absl::string_view text);

std::ostream& operator<<(std::ostream& out, const RankCoordinate& coordinate);
std::ostream& operator<<(std::ostream& out, const ParallelShape& shape);

template <class H>
H AbslHashValue(H state, const ParallelShape& shape) {
  return H::combine(std::move(state), shape.dp, shape.cp, shape.tp, shape.pp);
}

template <class H>
H AbslHashValue(H state, const RankCoordinate& coordinate) {
  return H::combine(std::move(state), coordinate.dp, coordinate.cp, coordinate.tp, coordinate.pp);
}

}  // namespace pageferry
