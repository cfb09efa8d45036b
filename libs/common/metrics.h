#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace pageferry {

/// Handles on one series. Copyable, thread-safe, borrow their `MetricRegistry`. A default one
/// counts nothing, so that a probe works without a registry.
class Counter {
 public:
  Counter() = default;
  explicit Counter(prometheus::Counter* series) : series_(series) {}
  /// `amount` below 0 is ignored.
  void Add(double amount = 1);
  double value() const;

 private:
  prometheus::Counter* series_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  explicit Gauge(prometheus::Gauge* series) : series_(series) {}
  void Set(double value);
  void Add(double amount);
  double value() const;

 private:
  prometheus::Gauge* series_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  explicit Histogram(prometheus::Histogram* series) : series_(series) {}
  void Observe(double value);
  /// Observations so far, and their sum.
  int64_t count() const;
  double sum() const;

 private:
  prometheus::Histogram* series_ = nullptr;
};

/// One label and all the values that it may have: closed, never an id of a room, agent or engine.
struct MetricLabel {
  std::string name;
  std::vector<std::string> values;
};

/// `name` is pageferry_<part>_<noun>_<unit>, for counters with _total behind it.
struct MetricInfo {
  std::string name;
  std::string help;
  std::vector<MetricLabel> labels;
};

/// The series of one name, one for each combination of label values, all there from the start, so
/// that a rate over them exists before the first event. Copyable, thread-safe.
template <class Metric>
class MetricFamily {
 public:
  MetricFamily() = default;

  /// The series with these values, in the order of `MetricInfo::labels`. A value outside its closed
  /// set is a defect of the caller: it is logged once and counted nowhere.
  Metric At(std::initializer_list<absl::string_view> values) const;

 private:
  friend class MetricRegistry;
  struct Data {
    MetricInfo info;
    std::vector<Metric> series;  // in the order of the combinations, last label fastest
    mutable std::atomic<bool> complained = false;
  };
  std::shared_ptr<const Data> data_;  // shared by copies
};

/// The metrics of one process or, in tests, of one service.
///
/// Thread-safe. Owns all series. Names and labels are fixed in code: a bad name (promtool's rules)
/// or the same name with another kind is logged as an error and yields handles that count nothing.
class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  Counter AddCounter(std::string name, std::string help);
  Gauge AddGauge(std::string name, std::string help);
  /// `buckets` are upper bounds, ascending.
  Histogram AddHistogram(std::string name, std::string help, const std::vector<double>& buckets);

  MetricFamily<Counter> AddCounterFamily(const MetricInfo& info);
  MetricFamily<Gauge> AddGaugeFamily(const MetricInfo& info);
  MetricFamily<Histogram> AddHistogramFamily(const MetricInfo& info,
                                             const std::vector<double>& buckets);

  /// A gauge that is asked at each scrape, on the scraping thread. `read` must not block, and what
  /// it refers to must outlive this registry.
  void AddGaugeFunction(std::string name, std::string help, std::function<double()> read);

  /// process_cpu_seconds_total, process_resident_memory_bytes, process_virtual_memory_bytes,
  /// process_open_fds, process_max_fds, process_threads, process_start_time_seconds.
  void AddProcessMetrics();

  /// Everything in Prometheus' text format.
  std::string Serialize() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Upper bounds start, start*factor, … `count` of them.
std::vector<double> ExponentialBuckets(double start, double factor, size_t count);
/// 100 µs to 100 s, about 3 a decade: for seconds.
std::vector<double> LatencyBuckets();

}  // namespace pageferry
