#include "libs/transport/slice_queue.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::transport {
namespace {

using testing::ElementsAre;

// What ran, in order.
class Record {
 public:
  void Add(std::string what) {
    const absl::MutexLock lock(&mutex_);
    what_.push_back(std::move(what));
  }
  std::vector<std::string> Take() {
    const absl::MutexLock lock(&mutex_);
    return std::exchange(what_, {});
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> what_;
};

class FakeJob final : public SliceJob {
 public:
  struct Options {
    std::string name;
    int slices = 1;
    std::function<absl::Status(int slice)> run;
    std::atomic<bool>* cancelled = nullptr;
    std::function<void()> done;
  };
  FakeJob(Record& record, Options options) : record_(record), options_(std::move(options)) {}

  bool has_more() const override { return cut_ < options_.slices; }
  void Cut(std::vector<Segment>& slice) override {
    ++cut_;
    slice.assign(1, {nullptr, nullptr, static_cast<size_t>(cut_)});
  }
  bool cancelled() const override {
    return options_.cancelled != nullptr && options_.cancelled->load();
  }
  absl::Status Run(absl::Span<const Segment> slice) override {
    record_.Add(options_.name + std::to_string(slice[0].size));
    return options_.run ? options_.run(static_cast<int>(slice[0].size)) : absl::OkStatus();
  }
  void Done(absl::Status status) override {
    EXPECT_EQ(calls_++, 0);
    record_.Add(options_.name + "-" + absl::StatusCodeToString(status.code()));
    if (options_.done) options_.done();
  }

 private:
  Record& record_;
  const Options options_;
  int cut_ = 0;
  int calls_ = 0;
};

// One thread, held by a first job until `Release`: what is pushed meanwhile is all there when the
// queue begins to choose.
class SliceQueueTest : public testing::Test {
 protected:
  SliceQueueTest() {
    holder_ = queue_.AddClient();
    client_ = queue_.AddClient();
    queue_.Push(
        holder_, 0, 0,
        std::make_unique<FakeJob>(record_, FakeJob::Options{.name = "hold", .run = [this](int) {
                                                              held_.Notify();
                                                              release_.WaitForNotification();
                                                              return absl::OkStatus();
                                                            }}));
    held_.WaitForNotification();
  }
  ~SliceQueueTest() override {
    if (!release_.HasBeenNotified()) release_.Notify();
    queue_.RemoveClient(client_);
    queue_.RemoveClient(holder_);
  }
  void Push(uint64_t flow, FakeJob::Options options, int32_t priority = 0) {
    queue_.Push(client_, flow, priority, std::make_unique<FakeJob>(record_, std::move(options)));
  }
  // Lets all run, answers what ran after the holder.
  std::vector<std::string> Run() {
    absl::Notification flushed;
    queue_.Flush(client_, [&](absl::Status status) {
      EXPECT_THAT(status, IsOk());
      flushed.Notify();
    });
    release_.Notify();
    flushed.WaitForNotification();
    std::vector<std::string> ran = record_.Take();
    ran.erase(ran.begin(), ran.begin() + 2);
    return ran;
  }

  Record record_;
  absl::Notification held_;
  absl::Notification release_;
  SliceQueue queue_{1};
  SliceQueue::ClientId holder_ = 0;
  SliceQueue::ClientId client_ = 0;
};

TEST_F(SliceQueueTest, FlowsTakeTurnsAndJobsOfOneFlowGoInOrder) {
  Push(1, {.name = "a", .slices = 3});
  Push(1, {.name = "b", .slices = 1});
  Push(2, {.name = "c", .slices = 1});
  EXPECT_THAT(Run(), ElementsAre("a1", "c1", "c-OK", "a2", "a3", "a-OK", "b1", "b-OK"));
}

TEST_F(SliceQueueTest, SmallFlowIsNotStuckBehindAHugeOne) {
  Push(1, {.name = "huge", .slices = 1000});
  Push(2, {.name = "small", .slices = 2});
  const std::vector<std::string> ran = Run();
  EXPECT_LT(std::ranges::find(ran, "small-OK") - ran.begin(), 6);
  EXPECT_EQ(ran.back(), "huge-OK");
}

TEST_F(SliceQueueTest, HigherPriorityGoesFirstButStarvesNobody) {
  Push(1, {.name = "low", .slices = 1}, -1);
  Push(2, {.name = "high", .slices = 100}, 5);
  const std::vector<std::string> ran = Run();
  const auto low = std::ranges::find(ran, "low-OK") - ran.begin();
  EXPECT_GE(low, 4);
  EXPECT_LT(low, 40);
  EXPECT_EQ(ran.back(), "high-OK");
}

TEST_F(SliceQueueTest, ErrorEndsAJobAtOnce) {
  Push(1, {.name = "a", .slices = 5, .run = [](int slice) {
             return slice == 2 ? absl::DataLossError("no") : absl::OkStatus();
           }});
  Push(1, {.name = "b"});
  EXPECT_THAT(Run(), ElementsAre("a1", "a2", "a-DATA_LOSS", "b1", "b-OK"));
}

TEST_F(SliceQueueTest, PresetErrorEndsInItsTurn) {
  Push(1, {.name = "a"});
  queue_.Push(client_, 1, 0,
              std::make_unique<FakeJob>(record_, FakeJob::Options{.name = "b", .slices = 9}),
              absl::InvalidArgumentError("bad"));
  EXPECT_THAT(Run(), ElementsAre("a1", "a-OK", "b-INVALID_ARGUMENT"));
}

TEST_F(SliceQueueTest, CancelIsSeenAtTheNextSlice) {
  std::atomic<bool> cancelled = false;
  Push(1, {.name = "a",
           .slices = 5,
           .run =
               [&](int slice) {
                 cancelled = slice == 2;
                 return absl::OkStatus();
               },
           .cancelled = &cancelled});
  EXPECT_THAT(Run(), ElementsAre("a1", "a2", "a-CANCELLED"));
}

TEST_F(SliceQueueTest, CancelAfterTheLastSliceIsTooLate) {
  std::atomic<bool> cancelled = false;
  Push(1, {.name = "a",
           .run =
               [&](int) {
                 cancelled = true;
                 return absl::OkStatus();
               },
           .cancelled = &cancelled});
  EXPECT_THAT(Run(), ElementsAre("a1", "a-OK"));
}

TEST_F(SliceQueueTest, RemovedClientsJobsEndAndOthersGoOn) {
  const SliceQueue::ClientId other = queue_.AddClient();
  absl::Notification begun;
  Push(1, {.name = "a", .slices = std::numeric_limits<int>::max(), .run = [&](int slice) {
             if (slice == 1) begun.Notify();
             return absl::OkStatus();
           }});
  Push(1, {.name = "b"});
  queue_.Push(other, 1, 0, std::make_unique<FakeJob>(record_, FakeJob::Options{.name = "c"}));
  std::atomic<bool> flushed = false;
  queue_.Flush(client_, [&](const absl::Status&) { flushed = true; });
  release_.Notify();
  begun.WaitForNotification();
  queue_.RemoveClient(client_);
  EXPECT_TRUE(flushed);
  absl::Notification other_flushed;
  queue_.Flush(other, [&](const absl::Status&) { other_flushed.Notify(); });
  other_flushed.WaitForNotification();
  queue_.RemoveClient(other);
  EXPECT_THAT(record_.Take(), testing::IsSupersetOf({"a-CANCELLED", "b-CANCELLED", "c-OK"}));
}

TEST_F(SliceQueueTest, CallbackMayPush) {
  Push(1, {.name = "a", .done = [this] { Push(1, {.name = "b"}); }});
  Push(2, {.name = "c"});
  std::vector<std::string> ran = Run();
  absl::Notification flushed;
  queue_.Flush(client_, [&](const absl::Status&) { flushed.Notify(); });
  flushed.WaitForNotification();
  // The first flush did not wait for what was pushed after it.
  for (std::string& late : record_.Take()) ran.push_back(std::move(late));
  EXPECT_THAT(ran, ElementsAre("a1", "a-OK", "c1", "c-OK", "b1", "b-OK"));
}

TEST(SliceQueueThreads, ManyClientsFlowsAndThreads) {
  SliceQueue queue(4);
  Record record;
  std::atomic<int> done = 0;
  std::vector<std::thread> pushers;
  for (int p = 0; p < 4; ++p) {
    pushers.emplace_back([&, p] {
      for (int round = 0; round < 5; ++round) {
        const SliceQueue::ClientId client = queue.AddClient();
        for (int i = 0; i < 40; ++i) {
          FakeJob::Options options{.name = "j", .slices = 1 + (i % 5)};
          options.done = [&done] { ++done; };
          queue.Push(client, static_cast<uint64_t>(i % 7), i % 3 - p,
                     std::make_unique<FakeJob>(record, std::move(options)));
        }
        absl::Notification flushed;
        queue.Flush(client, [&](const absl::Status&) { flushed.Notify(); });
        if (round % 2 == 0) flushed.WaitForNotification();
        queue.RemoveClient(client);
        flushed.WaitForNotification();
      }
    });
  }
  for (std::thread& pusher : pushers) pusher.join();
  EXPECT_EQ(done, 4 * 5 * 40);
}

}  // namespace
}  // namespace pageferry::transport
