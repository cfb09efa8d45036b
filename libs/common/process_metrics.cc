#include "libs/common/process_metrics.h"

#include <prometheus/metric_type.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "libs/common/tls_failures.h"

namespace pageferry {
namespace {

using Families = std::vector<prometheus::MetricFamily>;

void Add(const char* name, const char* help, prometheus::MetricType type, double value,
         Families& families) {
  prometheus::MetricFamily& family = families.emplace_back();
  family.name = name;
  family.help = help;
  family.type = type;
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

double BootTimeSeconds() {
  const std::string stat = ReadFile("/proc/stat");
  const size_t at = stat.find("\nbtime ");
  double seconds = 0;
  if (at != std::string::npos) {
    const size_t start = at + 7;
    (void)absl::SimpleAtod(absl::string_view(stat).substr(start, stat.find('\n', start) - start),
                           &seconds);
  }
  return seconds;
}

}  // namespace

Families ProcessMetrics::Collect() const {
  constexpr auto kGauge = prometheus::MetricType::Gauge;
  constexpr auto kCounter = prometheus::MetricType::Counter;
  Families families;

  // Fields are counted after the program's name, which may hold blanks: state is number 0 here.
  const std::string stat = ReadFile("/proc/self/stat");
  const size_t name_end = stat.rfind(')');
  std::vector<absl::string_view> fields;
  if (name_end != std::string::npos) {
    fields = absl::StrSplit(absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  }
  const auto field = [&fields](size_t i) {
    double value = 0;
    return i < fields.size() && absl::SimpleAtod(fields[i], &value) ? value : 0.0;
  };
  if (fields.size() > 21) {
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
    Add("process_cpu_seconds_total", "User and system CPU time of this process.", kCounter,
        (field(11) + field(12)) / ticks, families);
    Add("process_threads", "Threads of this process.", kGauge, field(17), families);
    Add("process_start_time_seconds", "Start of this process, seconds since the Unix epoch.",
        kGauge, BootTimeSeconds() + field(19) / ticks, families);
    Add("process_virtual_memory_bytes", "Virtual memory of this process.", kGauge, field(20),
        families);
    Add("process_resident_memory_bytes", "Resident memory of this process.", kGauge,
        field(21) * page, families);
  }

  std::error_code error;
  int64_t open_fds = -1;  // the folder itself is one of them
  std::filesystem::directory_iterator fd("/proc/self/fd", error);
  for (; !error && fd != std::filesystem::directory_iterator(); fd.increment(error)) ++open_fds;
  if (!error && open_fds >= 0) {
    Add("process_open_fds", "Open file descriptors.", kGauge, static_cast<double>(open_fds),
        families);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    Add("process_max_fds", "Limit of open file descriptors.", kGauge,
        static_cast<double>(limit.rlim_cur), families);
  }
  prometheus::MetricFamily& tls = families.emplace_back();
  tls.name = "pageferry_process_tls_handshake_failures_total";
  tls.help = "TLS handshakes that failed, of clients that dial this process and of its own.";
  tls.type = kCounter;
  for (const TlsFailure failure : kTlsFailures) {
    prometheus::ClientMetric& metric = tls.metric.emplace_back();
    metric.label.push_back({"reason", std::string(TlsFailureName(failure))});
    metric.counter.value = static_cast<double>(TlsFailureCount(failure));
  }
  return families;
}

}  // namespace pageferry
