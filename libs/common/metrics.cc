#include "libs/common/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/log.h"
#include "libs/common/process_metrics.h"

namespace pageferry {
namespace {

LogArea metrics_log("metrics");

struct GaugeFunction {
  std::string name;
  std::string help;
  std::function<double()> read;
};

bool ValidName(absl::string_view name) {
  return !name.empty() && name.front() >= 'a' && name.front() <= 'z' &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

bool ValidInfo(const MetricInfo& info, bool counter) {
  const bool total = absl::EndsWith(info.name, "_total");
  return ValidName(info.name) && total == counter && !info.help.empty() &&
         std::ranges::all_of(info.labels, [](const MetricLabel& label) {
           return ValidName(label.name) && !label.values.empty();
         });
}

std::vector<std::map<std::string, std::string>> Combinations(
    const std::vector<MetricLabel>& labels) {
  std::vector<std::map<std::string, std::string>> combinations = {{}};
  for (const MetricLabel& label : labels) {
    std::vector<std::map<std::string, std::string>> longer;
    for (const auto& combination : combinations) {
      for (const std::string& value : label.values) {
        longer.push_back(combination);
        longer.back()[label.name] = value;
      }
    }
    combinations = std::move(longer);
  }
  return combinations;
}

prometheus::MetricFamily Sample(const GaugeFunction& function) {
  prometheus::MetricFamily family;
  family.name = function.name;
  family.help = function.help;
  family.type = prometheus::MetricType::Gauge;
  family.metric.emplace_back().gauge.value = function.read();
  return family;
}

}  // namespace

void Counter::Add(double amount) {
  if (series_ != nullptr && amount > 0) series_->Increment(amount);
}
double Counter::value() const { return series_ == nullptr ? 0 : series_->Value(); }

void Gauge::Set(double value) {
  if (series_ != nullptr) series_->Set(value);
}
void Gauge::Add(double amount) {
  if (series_ != nullptr) series_->Increment(amount);
}
double Gauge::value() const { return series_ == nullptr ? 0 : series_->Value(); }

void Histogram::Observe(double value) {
  if (series_ != nullptr) series_->Observe(value);
}
int64_t Histogram::count() const {
  return series_ == nullptr ? 0 : static_cast<int64_t>(series_->Collect().histogram.sample_count);
}
double Histogram::sum() const {
  return series_ == nullptr ? 0 : series_->Collect().histogram.sample_sum;
}

template <class Metric>
Metric MetricFamily<Metric>::At(std::initializer_list<absl::string_view> values) const {
  if (data_ == nullptr || data_->series.empty()) return Metric();
  size_t index = 0;
  bool good = values.size() == data_->info.labels.size();
  for (size_t i = 0; good && i < values.size(); ++i) {
    const auto& allowed = data_->info.labels[i].values;
    const auto place = std::ranges::find(allowed, *(values.begin() + i));
    good = place != allowed.end();
    index = index * allowed.size() + static_cast<size_t>(place - allowed.begin());
  }
  if (good) return data_->series[index];
  if (!data_->complained.exchange(true)) {
    Log(LogLevel::kError, metrics_log, "unknown_label_value",
        {{"metric", data_->info.name}, {"values", absl::StrJoin(values, ",")}});
  }
  return Metric();
}

template class MetricFamily<Counter>;
template class MetricFamily<Gauge>;
template class MetricFamily<Histogram>;

struct MetricRegistry::Impl {
  /// Builds the family, or one without series where prometheus-cpp or our rules refuse it.
  template <class Metric, class Builder, class... Args>
  MetricFamily<Metric> Add(const MetricInfo& info, bool counter, Builder builder,
                           const Args&... args) {
    auto data = std::make_shared<typename MetricFamily<Metric>::Data>();
    data->info = info;
    MetricFamily<Metric> result;
    try {
      if (!ValidInfo(info, counter)) {
        throw std::invalid_argument("bad name, label or help");  // layers: caught just below
      }
      auto& family = builder.Name(info.name).Help(info.help).Register(registry);
      for (const auto& labels : Combinations(info.labels)) {
        data->series.emplace_back(&family.Add(labels, args...));
      }
    } catch (const std::exception& error) {
      Log(LogLevel::kError, metrics_log, "metric_refused",
          {{"metric", info.name}, {"error", error.what()}});
      data->series.clear();
    }
    result.data_ = std::move(data);
    return result;
  }

  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Throw};
  mutable absl::Mutex mutex;
  std::vector<GaugeFunction> functions ABSL_GUARDED_BY(mutex);
  bool process_metrics ABSL_GUARDED_BY(mutex) = false;
};

MetricRegistry::MetricRegistry() : impl_(std::make_unique<Impl>()) {}
MetricRegistry::~MetricRegistry() = default;

MetricFamily<Counter> MetricRegistry::AddCounterFamily(const MetricInfo& info) {
  return impl_->Add<Counter>(info, true, prometheus::BuildCounter());
}

MetricFamily<Gauge> MetricRegistry::AddGaugeFamily(const MetricInfo& info) {
  return impl_->Add<Gauge>(info, false, prometheus::BuildGauge());
}

MetricFamily<Histogram> MetricRegistry::AddHistogramFamily(const MetricInfo& info,
                                                           const std::vector<double>& buckets) {
  return impl_->Add<Histogram>(info, false, prometheus::BuildHistogram(), buckets);
}

Counter MetricRegistry::AddCounter(std::string name, std::string help) {
  return AddCounterFamily({std::move(name), std::move(help), {}}).At({});
}

Gauge MetricRegistry::AddGauge(std::string name, std::string help) {
  return AddGaugeFamily({std::move(name), std::move(help), {}}).At({});
}

Histogram MetricRegistry::AddHistogram(std::string name, std::string help,
                                       const std::vector<double>& buckets) {
  return AddHistogramFamily({std::move(name), std::move(help), {}}, buckets).At({});
}

void MetricRegistry::AddGaugeFunction(std::string name, std::string help,
                                      std::function<double()> read) {
  if (!ValidInfo({name, help, {}}, false)) {
    Log(LogLevel::kError, metrics_log, "metric_refused", {{"metric", name}});
    return;
  }
  absl::MutexLock lock(&impl_->mutex);
  impl_->functions.push_back({std::move(name), std::move(help), std::move(read)});
}

void MetricRegistry::AddProcessMetrics() {
  absl::MutexLock lock(&impl_->mutex);
  impl_->process_metrics = true;
}

std::string MetricRegistry::Serialize() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  std::vector<GaugeFunction> functions;
  bool process_metrics = false;
  {
    absl::MutexLock lock(&impl_->mutex);
    functions = impl_->functions;
    process_metrics = impl_->process_metrics;
  }
  for (const GaugeFunction& function : functions) families.push_back(Sample(function));
  if (process_metrics) {
    for (auto& family : ProcessMetrics().Collect()) families.push_back(std::move(family));
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return std::move(out).str();
}

std::vector<double> ExponentialBuckets(double start, double factor, size_t count) {
  std::vector<double> buckets;
  for (double bound = start; buckets.size() < count; bound *= factor) buckets.push_back(bound);
  return buckets;
}

std::vector<double> LatencyBuckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
          0.25,   0.5,     1,      2.5,   5,      10,    25,   50,    100};
}

}  // namespace pageferry
