#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pageferry {

/// The sum of `a` and `b`, or the nearest bound of int64 where the sum does not fit.
constexpr int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

/// The difference `a - b`, or the nearest bound of int64 where it does not fit.
constexpr int64_t SaturatingSubtract(int64_t a, int64_t b) {
  int64_t difference = 0;
  if (!__builtin_sub_overflow(a, b, &difference)) return difference;
  return b < 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

/// The product of `a` and `b`, or the nearest bound of int64 where it does not fit.
constexpr int64_t SaturatingMultiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? std::numeric_limits<int64_t>::max()
                            : std::numeric_limits<int64_t>::min();
}

/// A number that cannot be mixed with numbers of another `Tag`.
///
/// Value type, zero by default. Conversions are explicit in both directions; there is no
/// arithmetic but `Next()`. Works as a key of std and absl containers.
template <class Tag, class Rep>
class StrongNumber {
 public:
  using ValueType = Rep;

  constexpr StrongNumber() = default;
  constexpr explicit StrongNumber(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }

  /// The number after this one; the largest number is its own next.
  constexpr StrongNumber Next() const {
    return value_ == std::numeric_limits<Rep>::max() ? *this
                                                     : StrongNumber(static_cast<Rep>(value_ + 1));
  }

  friend constexpr auto operator<=>(StrongNumber, StrongNumber) = default;

  template <class H>
  friend H AbslHashValue(H state, StrongNumber number) {
    return H::combine(std::move(state), number.value_);
  }

  friend std::ostream& operator<<(std::ostream& out, StrongNumber number) {
    return out << number.value_;
  }

 private:
  Rep value_{};
};

/// A string that cannot be mixed with strings of another `Tag`.
///
/// Value type, empty by default; owns its text. Works as a key of std and absl containers.
template <class Tag>
class StrongString {
 public:
  StrongString() = default;
  explicit StrongString(std::string value) : value_(std::move(value)) {}
  explicit StrongString(absl::string_view value) : value_(value) {}
  explicit StrongString(const char* value) : value_(value) {}

  const std::string& value() const { return value_; }
  bool empty() const { return value_.empty(); }

  friend auto operator<=>(const StrongString&, const StrongString&) = default;

  template <class H>
  friend H AbslHashValue(H state, const StrongString& text) {
    return H::combine(std::move(state), text.value_);
  }

  friend std::ostream& operator<<(std::ostream& out, const StrongString& text) {
    return out << text.value_;
  }

 private:
  std::string value_;
};

/// One request's hand-over from prefill to decode, chosen by the router. It may be reused, so it
/// always travels with an `Attempt`.
using RoomId = StrongNumber<struct RoomIdTag, int64_t>;
/// Counts the times a room was asked for, from 1; 0 means "the one that is granted".
using Attempt = StrongNumber<struct AttemptTag, int64_t>;
/// Incarnation of an agent at a cell. Only grows; the fence against late frames.
using Epoch = StrongNumber<struct EpochTag, int64_t>;
/// A claim that lapses unless renewed.
using LeaseId = StrongNumber<struct LeaseIdTag, int64_t>;
/// A registered memory range on one agent.
using RegionId = StrongNumber<struct RegionIdTag, int64_t>;
/// Number of a frame within its session, from 1.
using Sequence = StrongNumber<struct SequenceTag, int64_t>;
/// State number of a watch.
using TableVersion = StrongNumber<struct TableVersionTag, int64_t>;
/// Place of a page in its pool, from 0.
using PageIndex = StrongNumber<struct PageIndexTag, int64_t>;
/// Flat index of a coordinate in its shape (`topology.h`); derived, never stored.
using RankIndex = StrongNumber<struct RankIndexTag, int64_t>;
/// A number of bytes.
using ByteCount = StrongNumber<struct ByteCountTag, int64_t>;

/// Sums and differences of byte counts saturate at the bounds of int64.
constexpr ByteCount operator+(ByteCount a, ByteCount b) {
  return ByteCount(SaturatingAdd(a.value(), b.value()));
}
constexpr ByteCount operator-(ByteCount a, ByteCount b) {
  return ByteCount(SaturatingSubtract(a.value(), b.value()));
}
constexpr ByteCount operator*(ByteCount a, int64_t times) {
  return ByteCount(SaturatingMultiply(a.value(), times));
}
constexpr ByteCount& operator+=(ByteCount& a, ByteCount b) { return a = a + b; }
constexpr ByteCount& operator-=(ByteCount& a, ByteCount b) { return a = a - b; }

/// One model server group with one parallel shape.
using EngineId = StrongString<struct EngineIdTag>;
/// One pageferry-agent process, one GPU.
using AgentId = StrongString<struct AgentIdTag>;
/// Separates fleets that share a bootstrap service.
using NamespaceName = StrongString<struct NamespaceNameTag>;
/// The stream between two agents, across reconnects.
using SessionId = StrongString<struct SessionIdTag>;

/// A reading of the monotonic clock: nanoseconds since an arbitrary origin of this process's host.
///
/// Value type; never sent to another host and never shown to people as a date. The bounds are
/// sticky: `InfiniteFuture()` minus any finite duration is `InfiniteFuture()`, and sums that do not
/// fit become a bound.
class MonotonicTime {
 public:
  /// The origin.
  constexpr MonotonicTime() = default;

  static constexpr MonotonicTime FromNanoseconds(int64_t nanoseconds) {
    return MonotonicTime(nanoseconds);
  }
  /// Later than every other reading: "never".
  static constexpr MonotonicTime InfiniteFuture() {
    return MonotonicTime(std::numeric_limits<int64_t>::max());
  }
  /// Earlier than every other reading.
  static constexpr MonotonicTime InfinitePast() {
    return MonotonicTime(std::numeric_limits<int64_t>::min());
  }

  constexpr int64_t nanoseconds() const { return nanoseconds_; }
  constexpr bool is_infinite() const {
    return *this == InfiniteFuture() || *this == InfinitePast();
  }

  friend constexpr auto operator<=>(MonotonicTime, MonotonicTime) = default;

  friend MonotonicTime operator+(MonotonicTime time, absl::Duration duration) {
    if (time.is_infinite()) return time;
    if (duration == -absl::InfiniteDuration()) return InfinitePast();
    return MonotonicTime(SaturatingAdd(time.nanoseconds_, absl::ToInt64Nanoseconds(duration)));
  }
  friend MonotonicTime operator-(MonotonicTime time, absl::Duration duration) {
    return time + -duration;
  }
  /// Infinite where either reading is; zero between two equal readings.
  friend absl::Duration operator-(MonotonicTime a, MonotonicTime b) {
    if (a == b) return absl::ZeroDuration();
    if (a.is_infinite() || b.is_infinite()) {
      return a > b ? absl::InfiniteDuration() : -absl::InfiniteDuration();
    }
    return absl::Nanoseconds(a.nanoseconds_) - absl::Nanoseconds(b.nanoseconds_);
  }
  MonotonicTime& operator+=(absl::Duration duration) { return *this = *this + duration; }

  template <class H>
  friend H AbslHashValue(H state, MonotonicTime time) {
    return H::combine(std::move(state), time.nanoseconds_);
  }

  friend std::ostream& operator<<(std::ostream& out, MonotonicTime time) {
    return out << time.nanoseconds_ << "ns";
  }

 private:
  constexpr explicit MonotonicTime(int64_t nanoseconds) : nanoseconds_(nanoseconds) {}

  int64_t nanoseconds_ = 0;
};

}  // namespace pageferry
