#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <vector>

namespace pageferry {

/// The process_* metrics of this process, by the names that Prometheus' own clients use, read from
/// /proc at each call, and pageferry_process_tls_handshake_failures_total. What cannot be read is
/// left out. Thread-safe, stateless.
class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace pageferry
