#include "libs/common/port_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using testing::HasSubstr;

class PortFileTest : public testing::Test {
 protected:
  PortFileTest() { std::filesystem::create_directory(folder_); }
  ~PortFileTest() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("port_file_test.", getpid());
};

TEST_F(PortFileTest, WritesAndReplacesAndLeavesNothingElse) {
  const std::string path = folder_ / "ports";
  ASSERT_THAT(WritePortFile(path, {{"grpc", 1}}), IsOk());
  ASSERT_THAT(WritePortFile(path, {{"grpc", 65'535}, {"engine", "unix:/a \"b\"\n"}}), IsOk());
  std::ifstream file(path);
  const nlohmann::json read = nlohmann::json::parse(file);
  EXPECT_EQ(read, nlohmann::json({{"grpc", 65'535}, {"engine", "unix:/a \"b\"\n"}}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(PortFileTest, NamesThePathThatCannotBeWritten) {
  const std::string path = folder_ / "none" / "ports";
  const absl::Status status = WritePortFile(path, {{"grpc", 1}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(PortFileTest, ReplacesNothingButAFile) {
  const std::filesystem::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_symlink("nowhere", link);
  for (const std::filesystem::path& path : {folder_, pipe, link}) {
    const absl::Status status = WritePortFile(path, {{"grpc", 1}});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no regular file"));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

}  // namespace
}  // namespace pageferry
