#include "libs/common/flag_values.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"

namespace pageferry {
namespace {

struct Unit {
  absl::string_view name;
  int64_t bytes;
};

constexpr Unit kUnits[] = {
    {"TiB", int64_t{1} << 40},
    {"GiB", int64_t{1} << 30},
    {"MiB", int64_t{1} << 20},
    {"KiB", int64_t{1} << 10},
    {"B", 1},
    {"", 1},
    {"kB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
};

}  // namespace

absl::StatusOr<absl::Duration> ParseDurationFlag(absl::string_view text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration == absl::InfiniteDuration() ||
      duration == -absl::InfiniteDuration()) {
    return InvalidField("duration", absl::StrCat("\"", text, "\""), "such as 3s or 250ms");
  }
  return duration;
}

absl::StatusOr<ByteCount> ParseBytesFlag(absl::string_view text) {
  const auto bad = [text] {
    return InvalidField("bytes", absl::StrCat("\"", text, "\""), "such as 64MiB or 4096");
  };
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) {
    ++digits;
  }
  int64_t number = 0;
  if (digits == 0 || !absl::SimpleAtoi(text.substr(0, digits), &number)) return bad();
  for (const Unit& unit : kUnits) {
    if (unit.name != text.substr(digits)) continue;
    if (number > std::numeric_limits<int64_t>::max() / unit.bytes) return bad();
    return ByteCount(number * unit.bytes);
  }
  return bad();
}

std::string FormatBytes(ByteCount bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes.value() != 0 && bytes.value() % unit.bytes == 0) {
      return absl::StrCat(bytes.value() / unit.bytes, unit.name);
    }
  }
  return "0B";
}

}  // namespace pageferry
