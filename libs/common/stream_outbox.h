#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "libs/common/ids.h"

namespace pageferry {

/// What `StreamOutbox::Push` did with a frame.
enum class PushResult : uint8_t {
  kStart,     ///< Taken, and no write was in flight: start the write of `in_flight()` now.
  kQueued,    ///< Taken; `OnWriteDone` will hand it out in its turn.
  kOverflow,  ///< Not taken, the frame is untouched: end the stream with a defined error.
  kClosed,    ///< Not taken, the frame is untouched: the outbox was closed.
};

/// A bounded queue in front of a stream's `StartWrite`, which takes one frame at a time.
///
/// Thread-compatible: the reactor that owns it calls it under its own mutex, and starts the write
/// after that mutex is released. That is in order, since there is never more than one in flight.
/// Owns its frames; the frame in flight stays where it is until `OnWriteDone`.
template <class Frame>
class StreamOutbox {
 public:
  struct Limits {
    size_t max_frames = 1024;                   ///< at least 1; counts the one in flight
    ByteCount max_bytes = ByteCount(16 << 20);  ///< counts the one in flight
  };

  explicit StreamOutbox(const Limits& limits) : limits_(limits) {}
  StreamOutbox(const StreamOutbox&) = delete;
  StreamOutbox& operator=(const StreamOutbox&) = delete;

  /// Takes `frame`, which counts as `bytes` (0 or more), unless a limit would be passed. One frame
  /// larger than `max_bytes` is taken when nothing else is there, so that a limit cannot wedge a
  /// stream; its size is checked elsewhere.
  [[nodiscard]] PushResult Push(Frame&& frame, ByteCount bytes) {
    if (closed_) return PushResult::kClosed;
    const bool first = frames_.empty();
    if (!first && (frames_.size() >= limits_.max_frames || bytes_ + bytes > limits_.max_bytes)) {
      return PushResult::kOverflow;
    }
    frames_.emplace_back(std::move(frame), bytes);
    bytes_ += bytes;
    return first ? PushResult::kStart : PushResult::kQueued;
  }

  /// The frame to write, or null when there is none. The pointer is good until `OnWriteDone`.
  const Frame* in_flight() const { return frames_.empty() ? nullptr : &frames_.front().first; }

  /// Drops the frame in flight and returns the next one to write, or null when there is none.
  [[nodiscard]] const Frame* OnWriteDone() {
    if (!frames_.empty()) {
      bytes_ -= frames_.front().second;
      frames_.pop_front();
    }
    return in_flight();
  }

  /// Takes nothing more. What was taken before is still handed out.
  void Close() { closed_ = true; }

  /// Closes, drops what waits and returns it in order. The frame in flight stays until
  /// `OnWriteDone`, which then returns null.
  std::vector<Frame> CloseAndDropWaiting() {
    closed_ = true;
    std::vector<Frame> dropped;
    while (frames_.size() > 1) {
      bytes_ -= frames_[1].second;
      dropped.push_back(std::move(frames_[1].first));
      frames_.erase(frames_.begin() + 1);
    }
    return dropped;
  }

  /// Frames and bytes taken and not yet written, with the one in flight.
  size_t size() const { return frames_.size(); }
  ByteCount bytes() const { return bytes_; }
  bool empty() const { return frames_.empty(); }
  bool closed() const { return closed_; }

 private:
  const Limits limits_;
  std::deque<std::pair<Frame, ByteCount>> frames_;  // a deque: push and pop move no other frame
  ByteCount bytes_;
  bool closed_ = false;
};

}  // namespace pageferry
