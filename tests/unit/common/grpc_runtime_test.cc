#include "libs/common/grpc_runtime.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "gtest/gtest.h"
#include "libs/common/clock.h"
#include "libs/common/error.h"
#include "libs/common/grpc_status.h"
#include "libs/common/release_later.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::ElementsAre;
using testing::HasSubstr;

const auto kInUse = StatusIs(absl::StatusCode::kUnavailable, Reason::kInUse);
const auto kBad = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField);

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  context.set_wait_for_ready(true);
}

absl::StatusOr<HealthCheckResponse::ServingStatus> Check(const std::string& target,
                                                         const std::string& service,
                                                         bool wait_for_ready = true) {
  const auto stub = Health::NewStub(MakeChannel(target));
  grpc::ClientContext context;
  SetDeadline(context);
  context.set_wait_for_ready(wait_for_ready);
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response.status();
}

// Calls a method that may not exist and returns how the call ended.
absl::Status CallRaw(const std::string& target, const std::string& method, size_t bytes) {
  grpc::GenericStub stub(MakeChannel(target, {.max_message_bytes = ByteCount(64 << 20)}));
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Slice slice(std::string(bytes, '\0'));
  grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  absl::Notification done;
  grpc::Status result;
  stub.UnaryCall(&context, method, {}, &request, &response, [&](grpc::Status status) {
    result = std::move(status);
    done.Notify();
  });
  done.WaitForNotification();
  return FromGrpcStatus(result);
}

std::string Loopback(int port) { return absl::StrCat("127.0.0.1:", port); }

TEST(GrpcServerTest, ServesHealthFromStateOnBothPorts) {
  ASSERT_OK_AND_ASSIGN(GrpcServer server, GrpcServer::Start({.addresses = {"127.0.0.1:0"},
                                                             .health_address = "127.0.0.1:0",
                                                             .health_names = {"pageferry.x"}}));
  ASSERT_NE(server.port(), 0);
  ASSERT_NE(server.health_port(), 0);
  EXPECT_THAT(server.addresses(), ElementsAre(Loopback(server.port())));
  for (const int port : {server.port(), server.health_port()}) {
    EXPECT_THAT(Check(Loopback(port), ""), IsOkAndHolds(HealthCheckResponse::SERVING));
    EXPECT_THAT(Check(Loopback(port), "pageferry.x"),
                IsOkAndHolds(HealthCheckResponse::NOT_SERVING));
    EXPECT_THAT(Check(Loopback(port), "nope"), StatusIs(absl::StatusCode::kNotFound));
  }
  server.health().Set("pageferry.x", true);
  EXPECT_THAT(Check(Loopback(server.health_port()), "pageferry.x"),
              IsOkAndHolds(HealthCheckResponse::SERVING));
}

// One Watch call. (A reactor: the synchronous ClientReader of g++'s generated code and that of a
// test compiled by clang do not link together, mold 1.10 stops at it.)
class Watch final : public grpc::ClientReadReactor<HealthCheckResponse> {
 public:
  Watch(const std::string& target, const std::string& service)
      : stub_(Health::NewStub(MakeChannel(target))) {
    SetDeadline(context_);
    request_.set_service(service);
    stub_->async()->Watch(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  // The next state; nothing when the stream has ended.
  std::optional<HealthCheckResponse::ServingStatus> Next() {
    absl::MutexLock lock(&mutex_);
    const auto something = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !states_.empty() || end_.has_value();
    };
    mutex_.Await(absl::Condition(&something));
    if (states_.empty()) return std::nullopt;
    const auto state = states_.front();
    states_.pop_front();
    return state;
  }

  absl::Status End() {
    while (Next().has_value()) {
    }
    absl::MutexLock lock(&mutex_);
    return *end_;
  }

  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      absl::MutexLock lock(&mutex_);
      states_.push_back(response_.status());
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    end_ = FromGrpcStatus(status);
  }

  std::unique_ptr<Health::Stub> stub_;
  grpc::ClientContext context_;
  HealthCheckRequest request_;
  HealthCheckResponse response_;
  absl::Mutex mutex_;
  std::deque<HealthCheckResponse::ServingStatus> states_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

TEST(GrpcServerTest, WatchTellsEachChangeAndEndsWithTheServer) {
  ASSERT_OK_AND_ASSIGN(GrpcServer server, GrpcServer::Start({.addresses = {"127.0.0.1:0"}}));
  Watch watch(Loopback(server.port()), "late");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  server.health().Set("late", true);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  server.Shutdown(RealClock::Get().Now() + absl::Seconds(30));
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(watch.Next(), std::nullopt);
  EXPECT_THAT(watch.End(), StatusIs(absl::StatusCode::kUnavailable, Reason::kDraining));
  server.Shutdown(MonotonicTime::InfiniteFuture());  // again: nothing
}

TEST(GrpcServerTest, CancelledWatchesGo) {
  ASSERT_OK_AND_ASSIGN(GrpcServer server, GrpcServer::Start({.addresses = {"127.0.0.1:0"}}));
  for (int i = 0; i < 20; ++i) {
    Watch watch(Loopback(server.port()), "");
    EXPECT_NE(watch.Next(), std::nullopt);
    std::thread changer([&] { server.health().Set("", i % 2 == 0); });
    watch.Cancel();
    changer.join();
    EXPECT_THAT(watch.End(), StatusIs(absl::StatusCode::kCancelled));
  }
}

TEST(GrpcServerTest, ATakenPortIsAnErrorWithItsAddress) {
  ASSERT_OK_AND_ASSIGN(GrpcServer server, GrpcServer::Start({.addresses = {"127.0.0.1:0"}}));
  const std::string taken = Loopback(server.port());
  const auto second = GrpcServer::Start({.addresses = {"127.0.0.1:0", taken}});
  EXPECT_THAT(second, kInUse);
  EXPECT_EQ(MetadataOf(second.status()).at("address"), taken);
  EXPECT_THAT(GrpcServer::Start({.addresses = {"127.0.0.1:0"}, .health_address = taken}), kInUse);
  EXPECT_THAT(Check(taken, ""), IsOk());
  server.Shutdown(MonotonicTime());
  EXPECT_THAT(GrpcServer::Start({.addresses = {taken}}), IsOk());
}

TEST(GrpcServerTest, WithoutTlsOnlyLoopbackUnlessInsecure) {
  for (const char* const address : {"0.0.0.0:0", "[::]:0", ":0", "*:0"}) {
    const auto refused = GrpcServer::Start({.addresses = {address}});
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kPolicy));
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--insecure"));
  }
  ASSERT_OK_AND_ASSIGN(GrpcServer open, GrpcServer::Start({.addresses = {"0.0.0.0:0"},
                                                           .credentials = {.insecure = true}}));
  EXPECT_THAT(Check(Loopback(open.port()), ""), IsOk());
  ASSERT_OK_AND_ASSIGN(GrpcServer probed, GrpcServer::Start({.addresses = {"127.0.0.1:0"},
                                                             .health_address = "0.0.0.0:0"}));
  EXPECT_THAT(Check(Loopback(probed.health_port()), ""), IsOk());
}

TEST(GrpcServerTest, BadOptions) {
  EXPECT_THAT(GrpcServer::Start({}), kBad);
  for (const char* const address : {"", "127.0.0.1", "127.0.0.1:x", "unix:", "192.0.2.1:0"}) {
    EXPECT_THAT(GrpcServer::Start({.addresses = {address}, .credentials = {.insecure = true}}),
                kBad)
        << address;
  }
  EXPECT_THAT(GrpcServer::Start({.addresses = {"127.0.0.1:0"}, .max_message_bytes = ByteCount(0)}),
              kBad);
}

TEST(GrpcServerTest, UnixSocketIsGuardedRestrictedAndRemoved) {
  std::string folder = testing::TempDir() + "pageferry_grpc_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/agent.sock";
  const std::string address = "unix:" + path;
  {
    ASSERT_OK_AND_ASSIGN(GrpcServer server,
                         GrpcServer::Start({.addresses = {address, "127.0.0.1:0"}}));
    EXPECT_THAT(server.addresses(), ElementsAre(address, Loopback(server.port())));
    struct stat file{};
    ASSERT_EQ(stat(path.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0660U);
    EXPECT_THAT(GrpcServer::Start({.addresses = {address}}), kInUse);
    EXPECT_THAT(Check(address, ""), IsOkAndHolds(HealthCheckResponse::SERVING));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(GrpcServerTest, MessagesAreBounded) {
  ASSERT_OK_AND_ASSIGN(
      GrpcServer server,
      GrpcServer::Start({.addresses = {"127.0.0.1:0"}, .max_message_bytes = ByteCount(4096)}));
  const std::string target = Loopback(server.port());
  EXPECT_THAT(CallRaw(target, "/grpc.health.v1.Health/Check", 8192),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Check(target, ""), IsOk());
}

TEST(GrpcServerTest, ReflectionIsAChoiceOfEachServer) {
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/Nope";
  const std::string info = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  ASSERT_OK_AND_ASSIGN(GrpcServer with, GrpcServer::Start({.addresses = {"127.0.0.1:0"},
                                                           .health_address = "127.0.0.1:0"}));
  ASSERT_OK_AND_ASSIGN(GrpcServer without,
                       GrpcServer::Start({.addresses = {"127.0.0.1:0"}, .reflection = false}));
  // One empty request to the stream: reflection answers it with an error message and ends well.
  EXPECT_THAT(CallRaw(Loopback(with.port()), info, 0), IsOk());
  const auto unimplemented = StatusIs(absl::StatusCode::kUnimplemented);
  EXPECT_THAT(CallRaw(Loopback(without.port()), info, 0), unimplemented);
  EXPECT_THAT(CallRaw(Loopback(with.health_port()), info, 0), unimplemented);
  EXPECT_THAT(CallRaw(Loopback(with.port()), method, 0), unimplemented);
}

TEST(GrpcServerTest, NewCallsAreRefusedAfterShutdown) {
  ASSERT_OK_AND_ASSIGN(GrpcServer server, GrpcServer::Start({.addresses = {"127.0.0.1:0"}}));
  const std::string target = Loopback(server.port());
  server.Shutdown(RealClock::Get().Now() + absl::Seconds(5));
  EXPECT_THAT(Check(target, "", false), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(ChannelTest, TheLastReferenceMayGoInsideAReaction) {
  ASSERT_OK_AND_ASSIGN(GrpcServer server, GrpcServer::Start({.addresses = {"127.0.0.1:0"}}));
  struct Call {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<Health::Stub> stub;
    grpc::ClientContext context;
    HealthCheckRequest request;
    HealthCheckResponse response;
  };
  for (int i = 0; i < 20; ++i) {
    auto call = std::make_shared<Call>();
    call->channel = MakeChannel(Loopback(server.port()));
    call->stub = Health::NewStub(call->channel);
    SetDeadline(call->context);
    absl::Notification done;
    Call* const raw = call.get();
    raw->stub->async()->Check(&raw->context, &raw->request, &raw->response,
                              [call = std::move(call), &done](grpc::Status status) mutable {
                                EXPECT_TRUE(status.ok());
                                ReleaseLater(std::move(call));
                                done.Notify();
                              });
    done.WaitForNotification();
  }
  FlushReleases();
}

}  // namespace
}  // namespace pageferry
