#include "libs/transport/ucx_worker.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry::transport {
namespace {

// A look at the worker even when nothing wakes it: some releases have lost a wake-up.
constexpr absl::Duration kLongestSleep = absl::Seconds(1);

absl::Status FromUcx(absl::string_view what, ucs_status_t status) {
  if (status == UCS_OK) return absl::OkStatus();
  const std::string why =
      absl::StrCat("UCX ", UcxVersion(), ": ", what, ": ", ucs_status_string(status));
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport, why,
                   {{"tcp", why}});
}

absl::Status Configure(ucp_config_t* config, const UcxWorkerOptions& options) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  // Settings of a transport go by their bare name in 1.13, and with a prefix in later releases.
  const std::string prefix = major == 1 && minor <= 13 ? "" : "TCP_";
  const std::array<std::pair<std::string, std::string>, 6> settings = {{
      {"TLS", "tcp"},
      {"NET_DEVICES", options.device},
      // Above a rendezvous threshold a receive that was given up can still land.
      {"RNDV_THRESH", "inf"},
      // One message of ours is one segment, so that it is placed from where it arrived.
      {prefix + "TX_SEG_SIZE", "272k"},
      {prefix + "RX_SEG_SIZE", "272k"},
      // Nobody may write memory here but by a message that we look at.
      {prefix + "PUT_ENABLE", "n"},
  }};
  for (const auto& [name, value] : settings) {
    PAGEFERRY_RETURN_IF_ERROR(FromUcx(absl::StrCat(name, "=", value),
                                      ucp_config_modify(config, name.c_str(), value.c_str())));
  }
  return absl::OkStatus();
}

}  // namespace

std::string UcxVersion() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return absl::StrCat(major, ".", minor, ".", release);
}

bool UcxWorker::Inbox::Post(Task task) {
  const absl::MutexLock lock(&mutex_);
  if (worker_ == nullptr) return false;
  tasks_.push_back(std::move(task));
  // The one call that other threads may make.
  if (tasks_.size() == 1) ucp_worker_signal(worker_);
  return true;
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Start(const UcxWorkerOptions& options) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker(options));
  absl::Status opened;
  absl::Notification ready;
  // Everything of UCX on its own thread, from the first call on.
  worker->thread_ = std::thread([&opened, &ready, it = worker.get()] {
    opened = it->Open();
    const bool good = opened.ok();
    ready.Notify();
    if (good) it->Loop();
    it->Close();
  });
  ready.WaitForNotification();
  if (!opened.ok()) {
    worker->thread_.join();
    return opened;
  }
  return worker;
}

UcxWorker::~UcxWorker() {
  if (!thread_.joinable()) return;
  Post([this] { stop_ = true; });
  thread_.join();
}

void UcxWorker::Run(Task task) {
  absl::Notification done;
  if (Post([&] {
        task();
        done.Notify();
      })) {
    done.WaitForNotification();
  }
}

absl::Status UcxWorker::Open() {
  ucp_config_t* config = nullptr;
  PAGEFERRY_RETURN_IF_ERROR(FromUcx("ucp_config_read", ucp_config_read(nullptr, nullptr, &config)));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  absl::Status status = Configure(config, options_);
  if (status.ok()) status = FromUcx("ucp_init", ucp_init(&params, config, &context_));
  ucp_config_release(config);
  PAGEFERRY_RETURN_IF_ERROR(status);

  ucp_worker_params_t of_worker{};
  of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  of_worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  PAGEFERRY_RETURN_IF_ERROR(
      FromUcx("ucp_worker_create", ucp_worker_create(context_, &of_worker, &worker_)));
  PAGEFERRY_RETURN_IF_ERROR(FromUcx("ucp_worker_get_efd", ucp_worker_get_efd(worker_, &event_fd_)));
  ucp_address_t* address = nullptr;
  size_t size = 0;
  PAGEFERRY_RETURN_IF_ERROR(
      FromUcx("ucp_worker_get_address", ucp_worker_get_address(worker_, &address, &size)));
  address_.assign(reinterpret_cast<const char*>(address), size);
  ucp_worker_release_address(worker_, address);
  const absl::MutexLock lock(&inbox_->mutex_);
  inbox_->worker_ = worker_;
  return absl::OkStatus();
}

void UcxWorker::Close() {
  {
    const absl::MutexLock lock(&inbox_->mutex_);
    inbox_->worker_ = nullptr;
  }
  RunTasks();
  timers_.clear();
  deferred_.clear();
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::Status UcxWorker::SetHandler(unsigned id, ucp_am_recv_callback_t callback, void* arg) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  param.id = id;
  param.cb = callback;
  param.arg = arg;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  return FromUcx("ucp_worker_set_am_recv_handler", ucp_worker_set_am_recv_handler(worker_, &param));
}

void UcxWorker::RunAt(MonotonicTime time, Task task) { timers_.emplace(time, std::move(task)); }

bool UcxWorker::RunTasks() {
  std::vector<Task> tasks;
  {
    const absl::MutexLock lock(&inbox_->mutex_);
    tasks.swap(inbox_->tasks_);
  }
  bool any = !tasks.empty();
  for (Task& task : tasks) task();
  if (!timers_.empty()) {
    const MonotonicTime now = RealClock::Get().Now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      Task task = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      task();
      any = true;
    }
  }
  while (!deferred_.empty()) {
    std::vector<Task> deferred = std::exchange(deferred_, {});
    for (Task& task : deferred) task();
    any = true;
  }
  return any;
}

void UcxWorker::Loop() {
  const RealClock& clock = RealClock::Get();
  MonotonicTime last = clock.Now();
  MonotonicTime end = MonotonicTime::InfiniteFuture();
  while (!stop_ || (endpoints_ > 0 && clock.Now() < end)) {
    if (stop_) end = std::min(end, clock.Now() + kLongestSleep);
    const bool ran = RunTasks();
    const bool progressed = ucp_worker_progress(worker_) != 0;
    if (ran || progressed || !deferred_.empty()) {
      if (active_ > 0) last = clock.Now();
      continue;
    }
    if (active_ > 0 && clock.Now() - last < options_.spin) continue;
    const ucs_status_t armed = ucp_worker_arm(worker_);
    if (armed == UCS_OK) Sleep();
  }
}

void UcxWorker::Sleep() {
  absl::Duration longest = kLongestSleep;
  if (!timers_.empty()) {
    longest = std::min(longest, timers_.begin()->first - RealClock::Get().Now());
  }
  pollfd events{.fd = event_fd_, .events = POLLIN, .revents = 0};
  const int64_t millis = std::max<int64_t>(0, absl::ToInt64Milliseconds(longest) + 1);
  poll(&events, 1, static_cast<int>(millis));
}

}  // namespace pageferry::transport
