#include "libs/common/release_later.h"

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace pageferry {
namespace {

class Releaser {
 public:
  static Releaser& Get() {
    static Releaser* const releaser = new Releaser;  // NOLINT: never destroyed, used at exit
    return *releaser;
  }

  void Add(std::shared_ptr<void> object) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(object));
    ++added_;
  }

  void Flush() {
    absl::MutexLock lock(&mutex_);
    const int64_t wanted = added_;
    const auto reached = [this, wanted]()
                             ABSL_NO_THREAD_SAFETY_ANALYSIS { return released_ >= wanted; };
    mutex_.Await(absl::Condition(&reached));
  }

 private:
  Releaser() : thread_([this] { Loop(); }) {}

  void Loop() {
    const auto waiting = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !queue_.empty(); };
    while (true) {
      std::vector<std::shared_ptr<void>> objects;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&waiting));
        objects.swap(queue_);
      }
      const auto count = static_cast<int64_t>(objects.size());
      objects.clear();
      absl::MutexLock lock(&mutex_);
      released_ += count;
    }
  }

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<void>> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t released_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace

void ReleaseLater(std::shared_ptr<void> object) {
  if (object != nullptr) Releaser::Get().Add(std::move(object));
}

void FlushReleases() { Releaser::Get().Flush(); }

}  // namespace pageferry
