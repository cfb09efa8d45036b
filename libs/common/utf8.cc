#include "libs/common/utf8.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace pageferry {

size_t Utf8SequenceLength(absl::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  size_t length = 0;
  uint32_t smallest = 0;
  if ((lead & 0xE0) == 0xC0) {
    length = 2;
    smallest = 0x80;
  } else if ((lead & 0xF0) == 0xE0) {
    length = 3;
    smallest = 0x800;
  } else if ((lead & 0xF8) == 0xF0) {
    length = 4;
    smallest = 0x10000;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  uint32_t code_point = lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code_point = (code_point << 6) | (byte(i) & 0x3FU);
  }
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  return code_point < smallest || surrogate || code_point > 0x10FFFF ? 0 : length;
}

std::string ValidUtf8(absl::string_view text, size_t max_bytes) {
  std::string valid;
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    const absl::string_view piece = length == 0 ? "?" : text.substr(0, length);
    if (valid.size() + piece.size() > max_bytes) break;
    valid.append(piece.data(), piece.size());
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return valid;
}

}  // namespace pageferry
