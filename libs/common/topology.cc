#include "libs/common/topology.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

constexpr std::array<absl::string_view, 4> kAxes = {"dp", "cp", "tp", "pp"};
using Parts = std::array<int64_t, 4>;

Parts PartsOf(const ParallelShape& shape) { return {shape.dp, shape.cp, shape.tp, shape.pp}; }
Parts PartsOf(const RankCoordinate& coordinate) {
  return {coordinate.dp, coordinate.cp, coordinate.tp, coordinate.pp};
}

std::string Join(const Parts& parts) {
  return absl::StrCat("dp", parts[0], " cp", parts[1], " tp", parts[2], " pp", parts[3]);
}

bool ParsePart(absl::string_view word, absl::string_view axis, int64_t& value) {
  constexpr size_t kMaxDigits = 5;  // of kMaxParallelSize
  if (!absl::ConsumePrefix(&word, axis) || word.empty() || word.size() > kMaxDigits) return false;
  for (const char c : word) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return absl::SimpleAtoi(word, &value) && value <= kMaxParallelSize;
}

absl::StatusOr<Parts> ParseParts(absl::string_view field, absl::string_view text) {
  constexpr absl::string_view kForm = "the form dp0 cp0 tp3 pp1";
  if (text.size() > 64) return InvalidField(field, absl::StrCat(text.size(), " bytes"), kForm);
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  Parts parts{};
  bool good = words.size() == parts.size();
  for (size_t i = 0; good && i < parts.size(); ++i) {
    good = ParsePart(words[i], kAxes[i], parts[i]);
  }
  if (!good) return InvalidField(field, absl::StrCat("\"", text, "\""), kForm);
  return parts;
}

}  // namespace

absl::Status ValidateShape(const ParallelShape& shape) {
  const Parts parts = PartsOf(shape);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] < 1 || parts[i] > kMaxParallelSize) {
      return InvalidField(absl::StrCat("shape.", kAxes[i]), absl::StrCat(parts[i]),
                          absl::StrCat("1 to ", kMaxParallelSize));
    }
  }
  if (RankCount(shape) > kMaxRanks) {
    return InvalidField("shape", absl::StrCat(ToString(shape), " = ", RankCount(shape), " ranks"),
                        absl::StrCat("at most ", kMaxRanks, " ranks"));
  }
  return absl::OkStatus();
}

int64_t RankCount(const ParallelShape& shape) {
  int64_t count = 1;
  for (const int64_t size : PartsOf(shape)) count = SaturatingMultiply(count, size);
  return count;
}

absl::Status ValidateCoordinate(const RankCoordinate& coordinate, const ParallelShape& shape) {
  const Parts parts = PartsOf(coordinate);
  const Parts sizes = PartsOf(shape);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] < 0 || parts[i] >= sizes[i]) {
      return InvalidField(absl::StrCat("coordinate.", kAxes[i]), absl::StrCat(parts[i]),
                          absl::StrCat("0 to ", sizes[i] - 1));
    }
  }
  return absl::OkStatus();
}

RankIndex ToRankIndex(const RankCoordinate& coordinate, const ParallelShape& shape) {
  return RankIndex(((coordinate.dp * shape.pp + coordinate.pp) * shape.cp + coordinate.cp) *
                       shape.tp +
                   coordinate.tp);
}

RankCoordinate ToCoordinate(RankIndex rank, const ParallelShape& shape) {
  RankCoordinate coordinate;
  int64_t rest = rank.value();
  coordinate.tp = rest % shape.tp;
  rest /= shape.tp;
  coordinate.cp = rest % shape.cp;
  rest /= shape.cp;
  coordinate.pp = rest % shape.pp;
  coordinate.dp = rest / shape.pp;
  return coordinate;
}

std::string ToString(const RankCoordinate& coordinate) { return Join(PartsOf(coordinate)); }
std::string ToString(const ParallelShape& shape) { return Join(PartsOf(shape)); }

absl::StatusOr<RankCoordinate> ParseRankCoordinate(absl::string_view text) {
  PAGEFERRY_ASSIGN_OR_RETURN(const Parts parts, ParseParts("coordinate", text));
  return RankCoordinate{parts[0], parts[1], parts[2], parts[3]};
}

absl::StatusOr<ParallelShape> ParseParallelShape(absl::string_view text) {
  PAGEFERRY_ASSIGN_OR_RETURN(const Parts parts, ParseParts("shape", text));
  const ParallelShape shape{parts[0], parts[1], parts[2], parts[3]};
  PAGEFERRY_RETURN_IF_ERROR(ValidateShape(shape));
  return shape;
}

std::ostream& operator<<(std::ostream& out, const RankCoordinate& coordinate) {
  return out << ToString(coordinate);
}
std::ostream& operator<<(std::ostream& out, const ParallelShape& shape) {
  return out << ToString(shape);
}

}  // namespace pageferry
