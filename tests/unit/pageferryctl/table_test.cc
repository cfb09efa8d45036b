#include "tools/pageferryctl/table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pageferry::ctl {
namespace {

TEST(TableTest, ColumnsLineUpAndLinesEndClean) {
  EXPECT_EQ(FormatTable({{.title = "NAME"}, {.title = "N", .right = true}, {.title = "WHY"}},
                        {{"a", "7", "x"}, {"longer", "1234", ""}, {"short"}}),
            "NAME       N  WHY\n"
            "a          7  x\n"
            "longer  1234\n"
            "short\n");
  EXPECT_EQ(FormatTable({}, {{"a"}}), "");
}

TEST(TableTest, CutsTheWidestOfTheColumnsThatMayShrink) {
  const std::vector<Column> columns = {
      {.title = "A", .shrink = true}, {.title = "B", .shrink = true}, {.title = "KEPT"}};
  const std::string text =
      FormatTable(columns, {{std::string(100, 'a'), std::string(60, 'b'), std::string(50, 'k')}});
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines[1].size(), kMaxWidth);
  EXPECT_EQ(lines[1], absl::StrCat(std::string(31, 'a'), "..  ", std::string(31, 'b'), "..  ",
                                   std::string(50, 'k')));
}

TEST(TableTest, WhatMayNotShrinkIsNeverCut) {
  const std::string wide(kMaxWidth + 30, 'k');
  const std::string text =
      FormatTable({{.title = "KEPT"}, {.title = "A", .shrink = true}}, {{wide, "0123456789"}});
  EXPECT_THAT(text, ::testing::HasSubstr(absl::StrCat(wide, "  012345..\n")));
}

TEST(TableTest, NothingSteersTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[31m\n\xc3\xa4~"), "a?[31m???~");
  EXPECT_EQ(FormatTable({{.title = "T"}}, {{"\x1b[2J"}}), "T\n?[2J\n");
  EXPECT_EQ(FormatFields({{"name", "a\nb"}}), "name  a?b\n");
}

TEST(TableTest, LongFieldsAreWrappedAtBlanks) {
  std::string words;
  for (int i = 0; i < 40; ++i) words += "word ";
  const std::string text = FormatFields({{"short", "x"}, {"longer name", words}});
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines[0], "short        x");
  ASSERT_EQ(lines.size(), 4);  // two for the words, one behind the last line's end
  for (const std::string& line : lines) EXPECT_LE(line.size(), kMaxWidth);
  EXPECT_THAT(lines[1], ::testing::StartsWith("longer name  word word"));
  EXPECT_THAT(lines[2], ::testing::StartsWith("             word word"));
}

TEST(TableTest, AFieldWithoutBlanksLosesNothing) {
  const std::string text = FormatFields({{"n", std::string(300, 'x')}});
  EXPECT_EQ(std::ranges::count(text, 'x'), 300);
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    EXPECT_LE(line.size(), kMaxWidth);
  }
}

}  // namespace
}  // namespace pageferry::ctl
