#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"

namespace pageferry {

/// Reads "3s", "250ms", "1h30m"; "0" needs no unit. kInvalidArgument, INVALID_FIELD otherwise, also
/// for "inf".
absl::StatusOr<absl::Duration> ParseDurationFlag(absl::string_view text);

/// Reads "64MiB", "4KiB", "1GiB", "512B" or plain digits (bytes); also decimal kB, MB, GB, TB. No
/// fractions, no sign. kInvalidArgument, INVALID_FIELD otherwise, also when it does not fit.
absl::StatusOr<ByteCount> ParseBytesFlag(absl::string_view text);

/// "64MiB": in the largest binary unit that divides it.
std::string FormatBytes(ByteCount bytes);

}  // namespace pageferry
