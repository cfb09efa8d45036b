#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

/// Checks of single fields that an engine, a peer or a service sent. `field` is the path of the
/// field in its message, for the error's metadata. Pure.
///
/// Errors are kInvalidArgument with the reason INVALID_FIELD (unless another is named) and the
/// metadata "field", "value", "allowed": mend the message, do not retry.
namespace pageferry::agent {

/// Longest lists that one message may carry, beside the bound of the message itself.
inline constexpr int64_t kMaxPageRuns = 262'144;
inline constexpr int64_t kMaxStateIndices = 1'048'576;
inline constexpr int64_t kMaxCapabilityBytes = 64;
/// Highest slot of an aux buffer that a message may name.
inline constexpr int64_t kMaxAuxSlot = 1'048'575;
inline constexpr int64_t kMaxEntries = 65'536;
inline constexpr int64_t kMaxComponents = 64;
inline constexpr int64_t kMaxRegions = 4'096;

/// `value` must be in [min, max].
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t min, int64_t max);

/// 1 to `max_length` characters of [A-Za-z0-9._-].
absl::Status CheckName(absl::string_view field, absl::string_view value, int64_t max_length);

/// 1 to 64 characters of [a-z0-9_].
absl::Status CheckAuxName(absl::string_view field, absl::string_view value);

/// At most 63 characters of [a-z0-9-]; empty is good and means "default".
absl::Status CheckNamespace(absl::string_view field, absl::string_view value);

/// At most `max_bytes` of text or bytes. TOO_LARGE.
absl::Status CheckSize(absl::string_view field, absl::string_view value, int64_t max_bytes);

/// At most `max` elements. TOO_LARGE.
absl::Status CheckCount(absl::string_view field, int64_t count, int64_t max);

/// UNKNOWN_ENUM for 0 and for numbers that `is_valid` (generated) does not know.
absl::Status CheckEnum(absl::string_view field, int value, bool (*is_valid)(int));

/// The duration of a proto, which must be well formed and in [min, max].
absl::StatusOr<absl::Duration> CheckDuration(absl::string_view field, int64_t seconds,
                                             int32_t nanos, absl::Duration min, absl::Duration max);

/// An error of a nested message with `prefix` and a dot put before its "field".
absl::Status InField(const absl::Status& status, absl::string_view prefix);
/// The same for element `index` of a list.
absl::Status InField(const absl::Status& status, absl::string_view prefix, int64_t index);

}  // namespace pageferry::agent
