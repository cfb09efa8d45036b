#include "libs/common/library_versions.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pageferry {
namespace {

using testing::HasSubstr;

TEST(LibraryVersionsTest, NamesEachLinkedLibrary) {
  const std::string text = VersionText("pageferry-agent", {{"ucx", "1.13.1"}});
  EXPECT_THAT(text, testing::StartsWith("pageferry-agent "));
  for (const char* const library : {"grpc", "protobuf", "abseil", "prometheus-cpp", "spdlog"}) {
    EXPECT_THAT(text, testing::ContainsRegex(std::string("\n  ") + library + " [0-9]+\\."));
  }
  EXPECT_THAT(text, testing::EndsWith("\n  ucx 1.13.1"));
}

}  // namespace
}  // namespace pageferry
