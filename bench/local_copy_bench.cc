// GB/s and CPU time of the local way on scattered pages, beside memcpy of the same pages.
//
// Every round copies the same random page lists once by each contender, one right after the other,
// so that whatever else the machine does hits all of them; medians and ratios are over rounds.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "libs/transport/local_transport.h"
#include "libs/transport/shm_pool.h"
#include "nlohmann/json.hpp"

namespace pageferry::transport {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr RegionId kSource{1};
constexpr RegionId kTarget{2};

struct Options {
  int64_t pool_mib = 512;
  int64_t round_mib = 128;
  int rounds = 15;
  int64_t slice_kib = 512;
  std::vector<int64_t> page_kib = {4, 16, 64, 256};
  std::string json;
};

struct Sample {
  double seconds = 0;
  double cpu_seconds = 0;
};

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// A local transport with a number of threads, connected to the source pool.
class Way {
 public:
  Way(int threads, ByteCount slice, ShmPool& source, const ShmPool& target) {
    transport_ = std::make_unique<LocalTransport>(
        LocalTransportOptions{.copy_threads = threads, .slice_size = slice});
    Check(
        transport_
            ->MapRegion({.id = kTarget, .data = target.data(), .size = target.size(), .local = {}})
            .status());
    auto peer = transport_->Connect(
        {.name = "bench",
         .address = {},
         .regions = {{.id = kSource, .size = source.size(), .local = source.local()}}});
    Check(peer.status());
    peer_ = *std::move(peer);
  }

  static void Check(const absl::Status& status) {
    if (status.ok()) return;
    absl::FPrintF(stderr, "%s\n", status.ToString());
    std::exit(1);
  }

  void Copy(Batch batch) {
    absl::Notification done;
    peer_->Write(std::move(batch), [&](const absl::Status& status) {
      Check(status);
      done.Notify();
    });
    done.WaitForNotification();
  }

 private:
  std::unique_ptr<LocalTransport> transport_;
  std::unique_ptr<TransportPeer> peer_;
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    source_ = MakePool("source");
    target_ = MakePool("target");
    std::memset(source_->data(), 1, static_cast<size_t>(source_->size().value()));
    const ByteCount slice(options_.slice_kib << 10);
    one_ = std::make_unique<Way>(1, slice, *source_, *target_);
    two_ = std::make_unique<Way>(2, slice, *source_, *target_);
  }

  nlohmann::json Run() {
    absl::PrintF("%d rounds of %d MiB out of %d MiB, medians; CPU is seconds per GiB\n\n",
                 options_.rounds, options_.round_mib, options_.pool_mib);
    absl::PrintF(
        "| page | memcpy GB/s | local, 1 thread | ratio | local, 2 threads | ratio | "
        "CPU memcpy | CPU local |\n|---|---|---|---|---|---|---|---|\n");
    nlohmann::json pages = nlohmann::json::array();
    for (const int64_t kib : options_.page_kib) pages.push_back(RunPage(kib));
    return {{"bench", "local_copy"}, {"rounds", options_.rounds}, {"pages", std::move(pages)}};
  }

 private:
  std::unique_ptr<ShmPool> MakePool(const std::string& name) const {
    ShmPoolOptions options;
    options.agent_id = absl::StrCat("bench-", getpid());
    options.name = name;
    options.size = ByteCount(options_.pool_mib << 20);
    auto pool = ShmPool::CreateOrAdopt(std::move(options));
    Way::Check(pool.status());
    return *std::move(pool);
  }

  std::vector<RunPair> RandomRuns(int64_t page_bytes) {
    std::vector<int64_t> sources(static_cast<size_t>((options_.pool_mib << 20) / page_bytes));
    std::iota(sources.begin(), sources.end(), 0);
    std::vector<int64_t> targets = sources;
    std::ranges::shuffle(sources, random_);
    std::ranges::shuffle(targets, random_);
    std::vector<RunPair> runs(static_cast<size_t>((options_.round_mib << 20) / page_bytes));
    for (size_t i = 0; i < runs.size(); ++i) runs[i] = {sources[i], targets[i], 1};
    return runs;
  }

  static Sample Measure(const std::function<void()>& copy) {
    const double cpu = CpuSeconds();
    const auto begin = std::chrono::steady_clock::now();
    copy();
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    return {wall.count(), CpuSeconds() - cpu};
  }

  nlohmann::json RunPage(int64_t kib) {
    const int64_t page_bytes = kib << 10;
    const auto entries = std::make_shared<const std::vector<EntryPair>>(std::vector<EntryPair>{
        {kSource, ByteCount(0), kTarget, ByteCount(0), ByteCount(page_bytes)}});
    const auto seal = source_->seals().Make();
    Way::Check(seal.status());
    std::vector<std::vector<Sample>> samples(3);
    for (int round = -1; round < options_.rounds; ++round) {
      const std::vector<RunPair> runs = RandomRuns(page_bytes);
      Batch batch;
      batch.steps.push_back({entries, runs});
      batch.seal = {kSource, seal->index, seal->value};
      const auto plain = [&] {
        for (const RunPair& run : runs) {
          std::memcpy(target_->data() + run.target_first * page_bytes,
                      source_->data() + run.source_first * page_bytes,
                      static_cast<size_t>(page_bytes));
        }
      };
      const std::vector<Sample> measured = {Measure(plain), Measure([&] { one_->Copy(batch); }),
                                            Measure([&] { two_->Copy(batch); })};
      if (round < 0) continue;  // mappings get their pages
      for (size_t i = 0; i < measured.size(); ++i) samples[i].push_back(measured[i]);
    }
    source_->seals().Break(*seal);
    return Report(kib, samples);
  }

  nlohmann::json Report(int64_t kib, const std::vector<std::vector<Sample>>& samples) const {
    const auto bytes = static_cast<double>(options_.round_mib << 20);
    std::vector<double> rate;
    std::vector<double> ratio;
    std::vector<double> cpu;
    for (const std::vector<Sample>& contender : samples) {
      std::vector<double> rates;
      std::vector<double> ratios;
      std::vector<double> cpus;
      for (size_t i = 0; i < contender.size(); ++i) {
        rates.push_back(bytes / contender[i].seconds / 1e9);
        ratios.push_back(samples[0][i].seconds / contender[i].seconds);
        cpus.push_back(contender[i].cpu_seconds / (bytes / kGiB));
      }
      rate.push_back(Median(rates));
      ratio.push_back(Median(ratios));
      cpu.push_back(Median(cpus));
    }
    absl::PrintF("| %d KiB | %.1f | %.1f | %.2f | %.1f | %.2f | %.3f | %.3f |\n", kib, rate[0],
                 rate[1], ratio[1], rate[2], ratio[2], cpu[0], cpu[1]);
    return {{"page_kib", kib},
            {"memcpy_gb_per_second", rate[0]},
            {"local_1_thread_gb_per_second", rate[1]},
            {"local_1_thread_ratio", ratio[1]},
            {"local_2_threads_gb_per_second", rate[2]},
            {"local_2_threads_ratio", ratio[2]},
            {"memcpy_cpu_seconds_per_gib", cpu[0]},
            {"local_cpu_seconds_per_gib", cpu[1]}};
  }

  const Options options_;
  std::mt19937_64 random_{1};
  std::unique_ptr<ShmPool> source_;
  std::unique_ptr<ShmPool> target_;
  std::unique_ptr<Way> one_;
  std::unique_ptr<Way> two_;
};

}  // namespace
}  // namespace pageferry::transport

int main(int argc, char** argv) {
  pageferry::transport::Options options;
  CLI::App app("Measures the local way against memcpy.");
  app.add_option("--pool-mib", options.pool_mib, "MiB of each pool")->check(CLI::Range(1, 1 << 20));
  app.add_option("--round-mib", options.round_mib, "MiB copied a round, at most a pool")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", options.rounds, "rounds a page size")->check(CLI::Range(1, 10'000));
  app.add_option("--slice-kib", options.slice_kib, "KiB of a slice")->check(CLI::Range(1, 1 << 20));
  app.add_option("--page-kib", options.page_kib, "page sizes in KiB")->check(CLI::Range(1, 1024));
  app.add_option("--json", options.json, "file for the numbers");
  CLI11_PARSE(app, argc, argv);
  options.round_mib = std::min(options.round_mib, options.pool_mib);
  const nlohmann::json result = pageferry::transport::Bench(options).Run();
  if (!options.json.empty()) std::ofstream(options.json) << result.dump(2) << "\n";
  return 0;
}
