#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace pageferry {

/// The length, 1 to 4 bytes, of the valid UTF-8 sequence that `text` starts with; 0 where `text` is
/// empty or starts with something else (overlong forms, surrogates and values above U+10FFFF too).
size_t Utf8SequenceLength(absl::string_view text);

/// `text` as valid UTF-8 of at most `max_bytes`: each bad byte becomes '?', and what does not fit
/// is cut between characters.
std::string ValidUtf8(absl::string_view text, size_t max_bytes = absl::string_view::npos);

}  // namespace pageferry
