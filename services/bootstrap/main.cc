#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "libs/common/flags.h"
#include "libs/common/grpc_log.h"
#include "libs/common/library_versions.h"
#include "libs/common/log.h"
#include "libs/common/port_file.h"
#include "libs/common/signal_wait.h"
#include "nlohmann/json.hpp"
#include "services/bootstrap/bootstrap_server.h"
#include "services/bootstrap/server_options.h"

namespace pageferry::bootstrap {
namespace {

constexpr char kProgram[] = "pageferry-bootstrap";

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", kProgram, std::string(status.message()).c_str());
  return EXIT_FAILURE;
}

int Main(int argc, const char* const* argv) {
  SignalWait signals;
  ServerOptions options;
  ProgramOptions program;
  Flags flags(kProgram, "The port table of Pageferry's engines, and the directory of rooms.",
              "bootstrap", VersionText(kProgram));
  AddFlags(flags, options, program);
  if (const auto code = flags.ParseMain(argc, argv)) return *code;
  if (const absl::Status status = ConfigureLog(program.log); !status.ok()) return Fail(status);
  InstallGrpcLog();

  auto server = BootstrapServer::Start(options);
  if (!server.ok()) return Fail(server.status());
  if (!program.port_file.empty()) {
    const absl::Status status =
        WritePortFile(program.port_file, {{"grpc", server->port()},
                                          {"health", server->health_port()},
                                          {"metrics", server->metrics_port()}});
    if (!status.ok()) return Fail(status);
  }
  std::printf("%s listening on %s\n", kProgram, server->address().c_str());
  std::fflush(stdout);
  signals.Wait();
  server->Stop();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace pageferry::bootstrap

int main(int argc, char** argv) { return pageferry::bootstrap::Main(argc, argv); }
