#include <cstdio>
#include <cstdlib>
#include <string>

#include "libs/common/flags.h"
#include "libs/common/grpc_log.h"
#include "libs/common/library_versions.h"
#include "libs/common/log.h"
#include "libs/common/port_file.h"
#include "libs/common/signal_wait.h"
#include "nlohmann/json.hpp"
#include "services/transfer-agent/agent.h"
#include "services/transfer-agent/agent_options.h"

namespace pageferry::agent {
namespace {

constexpr char kProgram[] = "pageferry-agent";

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", kProgram, std::string(status.message()).c_str());
  return EXIT_FAILURE;
}

int Main(int argc, const char* const* argv) {
  SignalWait signals;
  AgentOptions options;
  AgentProgramOptions program;
  Flags flags(kProgram, "Moves the KV cache pages of one engine rank.", "agent",
              VersionText(kProgram));
  AddFlags(flags, options, program);
  if (const auto code = flags.ParseMain(argc, argv)) return *code;
  if (const absl::Status status = ConfigureLog(program.log); !status.ok()) return Fail(status);
  InstallGrpcLog();

  auto agent = Agent::Start(options);
  if (!agent.ok()) return Fail(agent.status());
  const std::string& engine = agent->engine_addresses().front();
  if (!program.port_file.empty()) {
    const absl::Status status =
        WritePortFile(program.port_file, {{"engine", engine},
                                          {"peer", agent->peer_port()},
                                          {"health", agent->health_port()},
                                          {"metrics", agent->metrics_port()}});
    if (!status.ok()) return Fail(status);
  }
  std::printf("%s listening on %s peer %s\n", kProgram, engine.c_str(),
              agent->peer_address().c_str());
  std::fflush(stdout);
  signals.Wait();
  agent->Stop();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace pageferry::agent

int main(int argc, char** argv) { return pageferry::agent::Main(argc, argv); }
