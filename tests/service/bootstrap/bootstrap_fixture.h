#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/grpc_runtime.h"
#include "libs/common/grpc_status.h"
#include "pageferry/bootstrap/v1/bootstrap.grpc.pb.h"
#include "services/bootstrap/bootstrap_server.h"
#include "tests/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::bootstrap {

/// Waits for what happens on other threads; never for time of the service.
inline bool Eventually(const std::function<bool()>& condition) {
  constexpr int kTries = 2000;
  for (int i = 0; i < kTries; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

// Streams are used through their interfaces. Called by their final types, clang emits some of their
// members without the thunks that g++ puts beside them; in the sanitizer lanes, where g++ compiles
// the generated code, those of g++ are then dropped and mold misses the thunks.

/// A server in this process on port 0, whose time stands still until the test moves it.
class BootstrapTest : public testing::Test {
 protected:
  static constexpr int kRanks = 16;  // of the 2x1x4x2 engine

  void StartServer(ServerOptions options = {}) {
    server_.reset();
    options.listen = "127.0.0.1:0";
    options.clock = &clock_;
    options.scheduler = &clock_;
    auto server = BootstrapServer::Start(options);
    ASSERT_THAT(server, IsOk());
    server_.emplace(*std::move(server));
    channel_ = MakeChannel(server_->address());
    stub_ = v1::Bootstrap::NewStub(channel_);
  }
  /// A server that has been up for longer than its warm-up.
  void StartWarmServer(ServerOptions options = {}) {
    StartServer(options);
    clock_.Advance(absl::Seconds(6));
  }
  void SetUp() override { StartWarmServer(); }

  static pageferry::topology::v1::RankCoordinate Coordinate(int rank) {
    pageferry::topology::v1::RankCoordinate coordinate;
    coordinate.set_tp(rank % 4);
    coordinate.set_pp(rank / 4 % 2);
    coordinate.set_dp(rank / 8);
    return coordinate;
  }
  static std::string Name(int rank) {
    return absl::StrCat("dp", rank / 8, " cp0 tp", rank % 4, " pp", rank / 4 % 2);
  }
  static v1::RegisterRequest Claim(int rank, const std::string& engine = "prefill-0") {
    v1::RegisterRequest request;
    request.mutable_engine()->set_engine_id(engine);
    request.set_role(pageferry::topology::v1::ROLE_PREFILL);
    request.mutable_shape()->set_dp(2);
    request.mutable_shape()->set_cp(1);
    request.mutable_shape()->set_tp(4);
    request.mutable_shape()->set_pp(2);
    auto& profile = *request.mutable_profile();
    profile.set_page_tokens(16);
    profile.set_data_type(pageferry::topology::v1::DATA_TYPE_FLOAT16);
    profile.set_layout(pageferry::topology::v1::KV_LAYOUT_NHD);
    profile.set_attention(pageferry::topology::v1::ATTENTION_KIND_MHA);
    profile.set_total_kv_heads(8);
    profile.set_head_dim(64);
    *request.mutable_coordinate() = Coordinate(rank);
    request.set_agent_id(absl::StrCat("agent-", rank));
    request.mutable_incarnation()->set_start_time_unix_nanos(100);
    request.mutable_incarnation()->set_nonce(7);
    request.mutable_endpoint()->set_host("127.0.0.1");
    request.mutable_endpoint()->set_port(9000 + rank);
    return request;
  }

  template <class Request, class Response>
  using Method = grpc::Status (v1::Bootstrap::StubInterface::*)(grpc::ClientContext*,
                                                                const Request&, Response*);
  template <class Request, class Response>
  absl::StatusOr<Response> Call(Method<Request, Response> method, const Request& request,
                                grpc::ClientContext* given = nullptr) {
    grpc::ClientContext own;
    Response response;
    const grpc::Status status =
        ((*stub_).*method)(given == nullptr ? &own : given, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request) {
    return Call(&v1::Bootstrap::StubInterface::Register, request);
  }
  void RegisterAll(const std::string& engine = "prefill-0") {
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_THAT(Register(Claim(rank, engine)), IsOk());
  }
  absl::StatusOr<v1::ResolveRanksResponse> Resolve(const std::vector<int>& ranks,
                                                   int wait_seconds = 0,
                                                   grpc::ClientContext* context = nullptr) {
    v1::ResolveRanksRequest request;
    request.mutable_engine()->set_engine_id("prefill-0");
    for (const int rank : ranks) *request.add_coordinates() = Coordinate(rank);
    if (wait_seconds != 0) request.mutable_wait()->set_seconds(wait_seconds);
    return Call(&v1::Bootstrap::StubInterface::ResolveRanks, request, context);
  }
  absl::StatusOr<v1::Engine> GetEngine(const std::string& engine = "prefill-0") {
    v1::GetEngineRequest request;
    request.mutable_engine()->set_engine_id(engine);
    request.set_include_ranks(true);
    auto response = Call(&v1::Bootstrap::StubInterface::GetEngine, request);
    if (!response.ok()) return response.status();
    return response->engine();
  }
  absl::StatusOr<v1::PlaceRoomsResponse> Place(const std::vector<std::pair<int64_t, int>>& rooms) {
    v1::PlaceRoomsRequest request;
    request.mutable_engine()->set_engine_id("prefill-0");
    for (const auto& [room, dp_rank] : rooms) {
      auto& placement = *request.add_placements();
      placement.set_room_id(room);
      placement.set_dp_rank(dp_rank);
    }
    return Call(&v1::Bootstrap::StubInterface::PlaceRooms, request);
  }
  absl::StatusOr<std::string> Lookup(const std::vector<int64_t>& rooms, int wait_seconds = 0,
                                     grpc::ClientContext* context = nullptr) {
    v1::LookupRoomsRequest request;
    request.mutable_engine()->set_engine_id("prefill-0");
    request.mutable_room_ids()->Assign(rooms.begin(), rooms.end());
    if (wait_seconds != 0) request.mutable_wait()->set_seconds(wait_seconds);
    const auto response = Call(&v1::Bootstrap::StubInterface::LookupRooms, request, context);
    if (!response.ok()) return response.status();
    std::string text;
    for (const auto& p : response->placements()) {
      absl::StrAppend(&text, p.room_id(), "@", p.dp_rank(), " ");
    }
    return text;
  }

  /// The value of one series of the metrics page, -1 where there is none.
  double Metric(const std::string& series) {
    const std::string page = server_->Metrics();
    const size_t at = page.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stod(page.substr(at + series.size() + 2));
  }
  bool WaitingCalls(int count) {
    return Eventually([&] { return Metric("pageferry_bootstrap_waiting_calls") == count; });
  }

  FakeClock clock_;
  std::optional<BootstrapServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Bootstrap::StubInterface> stub_;
};

/// A call on a thread of its own.
template <class Result>
class Async {
 public:
  explicit Async(std::function<Result()> call) : thread_([this, call] { result_ = call(); }) {}
  ~Async() {
    if (thread_.joinable()) thread_.join();
  }
  Result& Get() {
    if (thread_.joinable()) thread_.join();
    return *result_;
  }

 private:
  std::optional<Result> result_;
  std::thread thread_;
};

/// A KeepAlive stream that is used step by step.
class KeepAliveClient {
 public:
  explicit KeepAliveClient(v1::Bootstrap::StubInterface& stub)
      : stream_(stub.KeepAlive(&context_)) {}
  ~KeepAliveClient() { context_.TryCancel(); }

  /// "12 LEASE_NOT_FOUND": the granted seconds or the reason of each lease.
  std::string Renew(const std::vector<int64_t>& leases) {
    v1::KeepAliveRequest request;
    request.mutable_lease_ids()->Assign(leases.begin(), leases.end());
    v1::KeepAliveResponse response;
    if (!stream_->Write(request) || !stream_->Read(&response)) return "ended";
    std::string text;
    for (const auto& lease : response.leases()) {
      text += text.empty() ? "" : " ";
      if (lease.has_error()) {
        absl::StrAppend(&text, ReasonName(static_cast<Reason>(lease.error().reason())));
      } else {
        absl::StrAppend(&text, lease.ttl().seconds());
      }
    }
    return text;
  }
  absl::Status End() {
    stream_->WritesDone();
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriterInterface<v1::KeepAliveRequest, v1::KeepAliveResponse>>
      stream_;
};

/// A WatchEngines stream, read on a thread of its own unless told to be lazy.
class WatchClient {
 public:
  WatchClient(v1::Bootstrap::StubInterface& stub, const v1::WatchEnginesRequest& request,
              bool lazy = false)
      : reader_(stub.WatchEngines(&context_, request)) {
    if (!lazy) Read();
  }
  ~WatchClient() {
    context_.TryCancel();
    if (!thread_.joinable()) Read();
    thread_.join();
  }
  void Read() {
    thread_ = std::thread([this] {
      v1::WatchEnginesResponse response;
      while (reader_->Read(&response)) {
        const absl::MutexLock lock(&mutex_);
        responses_.push_back(response);
      }
      const absl::Status status = FromGrpcStatus(reader_->Finish());
      const absl::MutexLock lock(&mutex_);
      end_ = status;
    });
  }

  /// The next message; nothing when the stream has ended or for too long nothing came.
  std::optional<v1::WatchEnginesResponse> Next(absl::Duration timeout = absl::Seconds(10)) {
    const absl::MutexLock lock(&mutex_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !responses_.empty() || end_.has_value();
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout) || responses_.empty()) {
      return std::nullopt;
    }
    auto response = std::move(responses_.front());
    responses_.pop_front();
    return response;
  }
  /// How the stream ended, once all messages were taken.
  absl::Status End() {
    while (Next()) {
    }
    const absl::MutexLock lock(&mutex_);
    return end_.value_or(absl::UnknownError("the watch has not ended"));
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderInterface<v1::WatchEnginesResponse>> reader_;
  absl::Mutex mutex_;
  std::deque<v1::WatchEnginesResponse> responses_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace pageferry::bootstrap
