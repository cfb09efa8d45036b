#pragma once

#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_stream.h"
#include "tests/fakes/fake_clock.h"

namespace pageferry::agent {

/// A loop whose tasks run when the test says so, and whose time moves only then.
///
/// Thread-compatible, but Post may be called on any thread, like that of every loop.
class FakeLoop final : public Loop {
 public:
  void Post(absl::AnyInvocable<void()> task) override {
    const absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
  }
  MonotonicTime Now() const override { return clock_.Now(); }
  TaskId RunAt(MonotonicTime deadline, absl::AnyInvocable<void()> task) override {
    return clock_.RunAt(deadline, [this, task = std::move(task)]() mutable {
      Post(std::move(task));
      Run();
    });
  }
  void Cancel(TaskId id) override { clock_.Cancel(id); }

  /// Runs what was posted, and what that posts.
  void Run() {
    while (absl::AnyInvocable<void()> task = Take()) task();
  }
  void Advance(absl::Duration duration) {
    Run();
    clock_.Advance(duration);
    Run();
  }

 private:
  absl::AnyInvocable<void()> Take() {
    const absl::MutexLock lock(&mutex_);
    if (tasks_.empty()) return nullptr;
    absl::AnyInvocable<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  FakeClock clock_;
  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
};

/// A stream whose other end is the test.
class FakeStream final : public PeerStream {
 public:
  void SetHandler(PeerStreamHandler* new_handler) override { handler = new_handler; }
  bool Send(const PeerOutput& output) override {
    if (full) return false;
    sent.push_back(output);
    return true;
  }
  void ReadNext() override { ++reads; }
  void End(const absl::Status& why, bool flush) override {
    if (!ended) end = why;
    ended = true;
    flushed = flush;
  }

  /// All frames of one kind that were sent, in order.
  template <class T>
  std::vector<T> All() const {
    std::vector<T> all;
    for (const PeerOutput& output : sent) {
      if constexpr (std::is_constructible_v<PeerFrame, T>) {
        const auto* frame = std::get_if<PeerFrame>(&output.content);
        if (frame == nullptr) continue;
        if (const T* inner = std::get_if<T>(frame)) all.push_back(*inner);
      } else if (const T* one = std::get_if<T>(&output.content)) {
        all.push_back(*one);
      }
    }
    return all;
  }

  PeerStreamHandler* handler = nullptr;
  std::vector<PeerOutput> sent;
  absl::Status end;
  int reads = 0;
  bool ended = false;
  bool flushed = false;
  bool full = false;
};

}  // namespace pageferry::agent
