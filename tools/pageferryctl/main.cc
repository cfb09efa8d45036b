#include <grpc/support/log.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "libs/common/library_versions.h"
#include "tools/pageferryctl/commands.h"
#include "tools/pageferryctl/failure.h"
#include "tools/pageferryctl/options.h"

namespace pageferry::ctl {
namespace {

bool Confirm(const std::string& question) {
  std::cerr << question << std::flush;
  std::string answer;
  return std::getline(std::cin, answer) && (answer == "y" || answer == "yes");
}

int Main(const std::vector<std::string>& arguments) {
  const Outcome outcome = ParseOptions(arguments, VersionText("pageferryctl"));
  std::cout << outcome.out << std::flush;
  std::cerr << outcome.err << std::flush;
  if (outcome.exit_code.has_value()) return *outcome.exit_code;

  // stderr is ours alone, JSON where that was asked for; gRPC's own lines only when wanted.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  Terminal terminal{.out = [](const std::string& text) { std::cout << text; },
                    .err = [](const std::string& text) { std::cerr << text << std::flush; }};
  if (isatty(STDIN_FILENO) == 1) terminal.confirm = Confirm;
  const int code = Run(outcome.options, terminal);
  if (!std::cout.flush()) {
    std::cerr << "pageferryctl: stdout cannot be written\n";
    return code == kExitOk ? kExitFailed : code;
  }
  return code;
}

}  // namespace
}  // namespace pageferry::ctl

int main(int argc, char** argv) {
  return pageferry::ctl::Main({argv + (argc > 0 ? 1 : 0), argv + argc});
}
