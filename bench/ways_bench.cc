// GB/s and CPU time of the ways local and tcp on scattered pages, beside memcpy and a bare socket
// on the same pages.
//
// Every round copies the same random page lists once by each contender, one right after the other,
// so that whatever else the machine does hits all of them; medians and ratios are over rounds.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
#include "bench/raw_socket.h"
#include "libs/transport/local_transport.h"
#include "libs/transport/shm_pool.h"
#include "libs/transport/ucx_transport.h"
#include "nlohmann/json.hpp"

namespace pageferry::transport {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr RegionId kSource{1};
constexpr RegionId kTarget{2};

constexpr size_t kMemcpy = 0;
constexpr size_t kLocal1 = 1;
constexpr size_t kSocket = 3;
constexpr size_t kTcp = 4;
constexpr std::array kNames = {"memcpy", "local 1", "local 2", "socket", "tcp"};

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

void Check(const absl::Status& status) {
  if (status.ok()) return;
  absl::FPrintF(stderr, "%s\n", status.ToString());
  std::exit(1);
}

OwnRegion RegionOf(RegionId id, ShmPool& pool) {
  return {.id = id,
          .data = pool.data(),
          .size = pool.size(),
          .local = pool.local(),
          .seals = &pool.seals()};
}

// One way from the source pool to the target's.
class Way {
 public:
  virtual ~Way() = default;
  void Copy(Batch batch) {
    absl::Notification done;
    peer_->Write(std::move(batch), [&](const absl::Status& status) {
      Check(status);
      done.Notify();
    });
    done.WaitForNotification();
  }

 protected:
  void Connect(Transport& transport, ShmPool& source, ShmPool& target, std::string address) {
    Check(transport.MapRegion(RegionOf(kTarget, target)).status());
    auto peer = transport.Connect(
        {.name = "bench",
         .address = std::move(address),
         .regions = {{.id = kSource, .size = source.size(), .local = source.local()}}});
    Check(peer.status());
    peer_ = *std::move(peer);
  }

  std::unique_ptr<TransportPeer> peer_;
};

class LocalWay final : public Way {
 public:
  LocalWay(int threads, ByteCount slice, ShmPool& source, ShmPool& target)
      : transport_({.copy_threads = threads, .slice_size = slice}) {
    Connect(transport_, source, target, "");
  }
  ~LocalWay() override { peer_.reset(); }

 private:
  LocalTransport transport_;
};

// Both ends in this process, each with its thread, over the loopback interface.
class TcpWay final : public Way {
 public:
  TcpWay(ShmPool& source, ShmPool& target) {
    auto sending = UcxTransport::Start({});
    auto receiving = UcxTransport::Start({});
    Check(sending.status());
    Check(receiving.status());
    sending_ = *std::move(sending);
    receiving_ = *std::move(receiving);
    Check(sending_->MapRegion(RegionOf(kSource, source)).status());
    auto passive = sending_->Accept({.name = "bench", .address = receiving_->address()});
    Check(passive.status());
    passive_ = *std::move(passive);
    Connect(*receiving_, source, target, passive_->address());
  }
  ~TcpWay() override {
    peer_.reset();
    passive_.reset();
  }

 private:
  std::unique_ptr<UcxTransport> sending_;
  std::unique_ptr<UcxTransport> receiving_;
  std::unique_ptr<PassivePeer> passive_;
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    source_ = MakePool("source");
    target_ = MakePool("target");
    std::memset(source_->data(), 1, static_cast<size_t>(source_->size().value()));
    const ByteCount slice(options_.slice_kib << 10);
    one_ = std::make_unique<LocalWay>(1, slice, *source_, *target_);
    two_ = std::make_unique<LocalWay>(2, slice, *source_, *target_);
    tcp_ = std::make_unique<TcpWay>(*source_, *target_);
  }

  nlohmann::json Run() {
    absl::PrintF("UCX %s; %d rounds of %d MiB out of %d MiB, medians; CPU is seconds per GiB\n\n",
                 UcxVersion(), options_.rounds, options_.round_mib, options_.pool_mib);
    absl::PrintF("| page |");
    for (const char* const name : kNames) absl::PrintF(" %s GB/s |", name);
    absl::PrintF(" local 1 : memcpy | tcp : socket |");
    for (const char* const name : kNames) absl::PrintF(" CPU %s |", name);
    absl::PrintF("\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    nlohmann::json pages = nlohmann::json::array();
    for (const int64_t kib : options_.page_kib) pages.push_back(RunPage(kib));
    return {{"bench", "ways"},
            {"ucx", UcxVersion()},
            {"rounds", options_.rounds},
            {"pages", std::move(pages)}};
  }

 private:
  std::unique_ptr<ShmPool> MakePool(const std::string& name) const {
    ShmPoolOptions options;
    options.agent_id = absl::StrCat("bench-", getpid());
    options.name = name;
    options.size = ByteCount(options_.pool_mib << 20);
    auto pool = ShmPool::CreateOrAdopt(std::move(options));
    Check(pool.status());
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
    Check(seal.status());
    std::vector<std::vector<Sample>> samples(kNames.size());
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
      std::vector<bench::RawSocket::Page> pages;
      pages.reserve(runs.size());
      for (const RunPair& run : runs) {
        pages.emplace_back(source_->data() + run.source_first * page_bytes,
                           target_->data() + run.target_first * page_bytes);
      }
      // In the order of kNames.
      const std::vector<Sample> measured = {
          Measure(plain), Measure([&] { one_->Copy(batch); }), Measure([&] { two_->Copy(batch); }),
          Measure([&] { socket_.Copy(pages, static_cast<size_t>(page_bytes)); }),
          Measure([&] { tcp_->Copy(batch); })};
      if (round < 0) continue;  // mappings get their pages
      for (size_t i = 0; i < measured.size(); ++i) samples[i].push_back(measured[i]);
    }
    source_->seals().Break(*seal);
    return Report(kib, samples);
  }

  nlohmann::json Report(int64_t kib, const std::vector<std::vector<Sample>>& samples) const {
    const auto bytes = static_cast<double>(options_.round_mib << 20);
    const auto median_of = [&](size_t contender, const auto& value) {
      std::vector<double> values;
      values.reserve(samples[contender].size());
      for (size_t i = 0; i < samples[contender].size(); ++i) values.push_back(value(i));
      return Median(std::move(values));
    };
    const auto ratio = [&](size_t contender, size_t beside) {
      return median_of(contender, [&](size_t i) {
        return samples[beside][i].seconds / samples[contender][i].seconds;
      });
    };
    nlohmann::json result = {{"page_kib", kib},
                             {"local_1_to_memcpy", ratio(kLocal1, kMemcpy)},
                             {"tcp_to_socket", ratio(kTcp, kSocket)}};
    absl::PrintF("| %d KiB |", kib);
    for (size_t i = 0; i < kNames.size(); ++i) {
      const double rate =
          median_of(i, [&](size_t n) { return bytes / samples[i][n].seconds / 1e9; });
      result["gb_per_second"][kNames[i]] = rate;
      absl::PrintF(" %.1f |", rate);
    }
    absl::PrintF(" %.2f | %.2f |", ratio(kLocal1, kMemcpy), ratio(kTcp, kSocket));
    for (size_t i = 0; i < kNames.size(); ++i) {
      const double cpu =
          median_of(i, [&](size_t n) { return samples[i][n].cpu_seconds / (bytes / kGiB); });
      result["cpu_seconds_per_gib"][kNames[i]] = cpu;
      absl::PrintF(" %.2f |", cpu);
    }
    absl::PrintF("\n");
    std::fflush(stdout);
    return result;
  }

  const Options options_;
  std::mt19937_64 random_{1};
  std::unique_ptr<ShmPool> source_;
  std::unique_ptr<ShmPool> target_;
  std::unique_ptr<Way> one_;
  std::unique_ptr<Way> two_;
  std::unique_ptr<Way> tcp_;
  bench::RawSocket socket_;
};

}  // namespace
}  // namespace pageferry::transport

int main(int argc, char** argv) {
  pageferry::transport::Options options;
  CLI::App app("Measures the ways local and tcp against memcpy and a bare socket.");
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
