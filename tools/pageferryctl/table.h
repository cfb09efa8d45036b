#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace pageferry::ctl {

/// What every table of ours fits into.
inline constexpr size_t kMaxWidth = 120;

/// One column of a table.
struct Column {
  std::string title;
  bool right = false;   ///< numbers line up at their right
  bool shrink = false;  ///< may be cut, shown by "..", where the line would be longer than 120
};

/// `text` with every byte that is no printable ASCII replaced by '?': names and messages come from
/// elsewhere, and must not steer the terminal.
std::string Printable(absl::string_view text);

/// Aligned columns with two blanks between them, a line of titles first. Rows may be shorter than
/// `columns`. Lines end in "\n" and have no blanks at their end.
std::string FormatTable(const std::vector<Column>& columns,
                        const std::vector<std::vector<std::string>>& rows);

/// One line "name  value" for each pair; values are wrapped at blanks where they are too long.
std::string FormatFields(const std::vector<std::pair<std::string, std::string>>& fields);

}  // namespace pageferry::ctl
