#include "tools/pageferryctl/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace pageferry::ctl {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kMinShrunk = 8;
constexpr absl::string_view kCut = "..";

std::string Fit(std::string text, size_t width) {
  if (text.size() <= width) return text;
  text.resize(width - kCut.size());
  return absl::StrCat(text, kCut);
}

/// Takes width from the widest columns that may shrink until the line fits.
void Shrink(const std::vector<Column>& columns, std::vector<size_t>& widths) {
  size_t total = kGap * (widths.size() - 1);
  for (const size_t width : widths) total += width;
  while (total > kMaxWidth) {
    size_t* widest = nullptr;
    for (size_t i = 0; i < widths.size(); ++i) {
      const bool smaller = columns[i].shrink && widths[i] > kMinShrunk;
      if (smaller && (widest == nullptr || widths[i] > *widest)) widest = &widths[i];
    }
    if (widest == nullptr) return;
    --*widest;
    --total;
  }
}

void AppendLine(std::string& out, std::string line) {
  absl::StripTrailingAsciiWhitespace(&line);
  absl::StrAppend(&out, line, "\n");
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string printable(text);
  std::ranges::replace_if(
      printable, [](char c) { return !absl::ascii_isprint(static_cast<unsigned char>(c)); }, '?');
  return printable;
}

std::string FormatTable(const std::vector<Column>& columns,
                        const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> cells;
  cells.reserve(rows.size() + 1);
  cells.emplace_back();
  for (const Column& column : columns) cells.front().push_back(column.title);
  for (const std::vector<std::string>& row : rows) {
    std::vector<std::string>& line = cells.emplace_back(columns.size());
    for (size_t i = 0; i < std::min(row.size(), columns.size()); ++i) line[i] = Printable(row[i]);
  }
  std::vector<size_t> widths(columns.size());
  for (const std::vector<std::string>& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  if (widths.empty()) return "";
  Shrink(columns, widths);

  std::string out;
  for (const std::vector<std::string>& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = Fit(row[i], widths[i]);
      const std::string blanks(widths[i] - cell.size(), ' ');
      if (i > 0) line.append(kGap, ' ');
      absl::StrAppend(&line, columns[i].right ? blanks : "", cell, columns[i].right ? "" : blanks);
    }
    AppendLine(out, std::move(line));
  }
  return out;
}

std::string FormatFields(const std::vector<std::pair<std::string, std::string>>& fields) {
  size_t names = 0;
  for (const auto& [name, value] : fields) names = std::max(names, name.size());
  const size_t room = kMaxWidth - std::min(names + kGap, kMaxWidth / 2);
  std::string out;
  for (const auto& [name, value] : fields) {
    std::string rest = Printable(value);
    std::string lead = absl::StrCat(name, std::string(names - name.size() + kGap, ' '));
    while (rest.size() > room) {
      const size_t blank = rest.rfind(' ', room);
      const bool found = blank != std::string::npos && blank > 0;
      const size_t end = found ? blank : room;
      AppendLine(out, absl::StrCat(lead, rest.substr(0, end)));
      rest.erase(0, found ? end + 1 : end);
      lead.assign(names + kGap, ' ');
    }
    AppendLine(out, absl::StrCat(lead, rest));
  }
  return out;
}

}  // namespace pageferry::ctl
