#include "libs/common/grpc_log.h"

#include <grpcpp/version_info.h>

// Releases from 1.66 on log through Abseil, and dropped the hook.
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 66
#define PAGEFERRY_GRPC_LOG_HOOK 1
#include <grpc/support/log.h>

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/clock.h"
#include "libs/common/log.h"
#include "libs/common/tls_failures.h"
#endif

namespace pageferry {

#ifdef PAGEFERRY_GRPC_LOG_HOOK
namespace {

LogArea grpc_log("grpc");
LogArea tls_log("tls");

void OnGrpcLog(gpr_log_func_args* line) {
  static auto* const limit = new LogRateLimit(absl::Seconds(1), 20);  // NOLINT: used at exit
  const LogLevel level =
      line->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kVerbose;
  // Each is counted, also those that are not written.
  const std::optional<TlsFailure> failure = TlsFailureOf(line->message);
  if (failure.has_value()) CountTlsFailure(*failure);
  if (!grpc_log.enabled(level)) return;
  const std::optional<int64_t> suppressed = limit->Admit(RealClock::Get().Now());
  if (!suppressed.has_value()) return;
  if (failure.has_value()) {
    Log(level, tls_log, "handshake_failed",
        {{"reason", TlsFailureName(*failure)},
         {"why", TlsFailureText(*failure)},
         {"message", line->message},
         {"suppressed", *suppressed}});
    return;
  }
  absl::string_view file = line->file;
  file.remove_prefix(file.rfind('/') + 1);  // npos + 1 is 0
  Log(level, grpc_log, "grpc_message",
      {{"message", line->message},
       {"source", absl::StrCat(file, ":", line->line)},
       {"suppressed", *suppressed}});
}

}  // namespace

void InstallGrpcLog() { gpr_set_log_function(&OnGrpcLog); }
#else
void InstallGrpcLog() {}
#endif

}  // namespace pageferry
