#include "services/transfer-agent/validate.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::agent {
namespace {

absl::Status UnknownEnum(absl::string_view field, absl::string_view value) {
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kUnknownEnum,
                   absl::StrCat(field, " has no known value: ", value),
                   {{"field", std::string(field)}, {"value", std::string(value)}});
}

absl::Status TooLarge(absl::string_view field, absl::string_view value, absl::string_view allowed) {
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kTooLarge,
                   absl::StrCat(field, " is too large: ", value, ", at most ", allowed),
                   {{"field", std::string(field)},
                    {"value", std::string(value)},
                    {"allowed", std::string(allowed)}});
}

template <class IsGood>
bool AllOf(absl::string_view text, IsGood is_good) {
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_good(static_cast<unsigned char>(c)); });
}

bool FitsLength(absl::string_view value, int64_t max) {
  return static_cast<int64_t>(value.size()) <= max;
}

}  // namespace

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value), absl::StrCat(min, " to ", max));
}

absl::Status CheckName(absl::string_view field, absl::string_view value, int64_t max_length) {
  const bool good =
      !value.empty() && FitsLength(value, max_length) && AllOf(value, [](unsigned char c) {
        return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
      });
  if (good) return absl::OkStatus();
  return InvalidField(field, value.substr(0, 256),
                      absl::StrCat("1 to ", max_length, " characters of [A-Za-z0-9._-]"));
}

absl::Status CheckAuxName(absl::string_view field, absl::string_view value) {
  const bool good = !value.empty() && FitsLength(value, 64) && AllOf(value, [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  });
  if (good) return absl::OkStatus();
  return InvalidField(field, value.substr(0, 256), "1 to 64 characters of [a-z0-9_]");
}

absl::Status CheckNamespace(absl::string_view field, absl::string_view value) {
  const bool good = FitsLength(value, 63) && AllOf(value, [](unsigned char c) {
                      return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
                    });
  if (good) return absl::OkStatus();
  return InvalidField(field, value.substr(0, 256), "at most 63 characters of [a-z0-9-]");
}

absl::Status CheckSize(absl::string_view field, absl::string_view value, int64_t max_bytes) {
  if (FitsLength(value, max_bytes)) return absl::OkStatus();
  return TooLarge(field, absl::StrCat(value.size(), " bytes"), absl::StrCat(max_bytes, " bytes"));
}

absl::Status CheckCount(absl::string_view field, int64_t count, int64_t max) {
  if (count <= max) return absl::OkStatus();
  return TooLarge(field, absl::StrCat(count), absl::StrCat(max));
}

absl::Status CheckEnum(absl::string_view field, int value, bool (*is_valid)(int)) {
  if (value != 0 && is_valid(value)) return absl::OkStatus();
  return UnknownEnum(field, absl::StrCat(value));
}

absl::StatusOr<absl::Duration> CheckDuration(absl::string_view field, int64_t seconds,
                                             int32_t nanos, absl::Duration min,
                                             absl::Duration max) {
  // The bounds of google.protobuf.Duration; its two parts must have one sign.
  constexpr int64_t kMaxSeconds = 315'576'000'000;
  const bool well_formed = seconds >= -kMaxSeconds && seconds <= kMaxSeconds &&
                           nanos > -1'000'000'000 && nanos < 1'000'000'000 &&
                           !(seconds > 0 && nanos < 0) && !(seconds < 0 && nanos > 0);
  const absl::Duration duration = absl::Seconds(seconds) + absl::Nanoseconds(nanos);
  if (well_formed && duration >= min && duration <= max) return duration;
  return InvalidField(
      field,
      well_formed ? absl::FormatDuration(duration) : absl::StrCat(seconds, " s ", nanos, " ns"),
      absl::StrCat(absl::FormatDuration(min), " to ", absl::FormatDuration(max)));
}

absl::Status InField(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) return status;
  const Reason reason = ReasonOf(status);
  ErrorMetadata metadata = MetadataOf(status);
  const auto found = metadata.find("field");
  if (found == metadata.end()) return status;
  const std::string field = absl::StrCat(prefix, ".", found->second);
  if (reason == Reason::kInvalidField) {
    return InvalidField(field, metadata["value"], metadata["allowed"]);
  }
  if (reason == Reason::kUnknownEnum) return UnknownEnum(field, metadata["value"]);
  if (reason == Reason::kTooLarge) return TooLarge(field, metadata["value"], metadata["allowed"]);
  metadata["field"] = field;
  return MakeError(status.code(), reason, absl::StrCat(prefix, ": ", status.message()), metadata);
}

absl::Status InField(const absl::Status& status, absl::string_view prefix, int64_t index) {
  if (status.ok()) return status;
  return InField(status, absl::StrCat(prefix, "[", index, "]"));
}

}  // namespace pageferry::agent
