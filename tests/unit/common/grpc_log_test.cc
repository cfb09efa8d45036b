#include "libs/common/grpc_log.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/log.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(GrpcLogTest, ErrorsBecomeWarningsAndAreLimited) {
  std::vector<std::string> lines;
  ASSERT_THAT(ConfigureLog({.writer = [&](const std::string& line) { lines.push_back(line); }}),
              IsOk());
  grpc_init();  // reads GRPC_VERBOSITY
  InstallGrpcLog();
  gpr_log_message("a/b/c.cc", 7, GPR_LOG_SEVERITY_ERROR, "handshake failed");
  gpr_log_message("c.cc", 8, GPR_LOG_SEVERITY_INFO, "chatter");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr(" warning grpc grpc_message message \"handshake failed\" "),
                              HasSubstr(" source c.cc:7 ")));
  for (int i = 0; i < 1000; ++i) gpr_log_message("c.cc", 9, GPR_LOG_SEVERITY_ERROR, "flood");
  EXPECT_LT(lines.size(), 100U);
  grpc_shutdown();
  EXPECT_THAT(ConfigureLog({}), IsOk());
}

}  // namespace
}  // namespace pageferry
