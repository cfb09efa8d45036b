#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"

namespace pageferry {

/// By volume: errors need a person, warnings tell of trouble that was handled, info is at most a
/// few lines for each connection or life-cycle step, verbose is per room or frame and is off unless
/// its area is named by `--log-verbose`.
enum class LogLevel : uint8_t { kVerbose, kInfo, kWarning, kError };

/// A part of the code whose verbose lines are switched together. Define one for each subject, with
/// static storage, as `inline constinit`/namespace-scope or function-free variable:
///   LogArea session_log("session");
/// Thread-safe. Lives until the process ends: areas register themselves in a list.
class LogArea {
 public:
  /// `name` is a literal in lower_snake; areas of one name are switched together.
  explicit LogArea(const char* name);
  LogArea(const LogArea&) = delete;
  LogArea& operator=(const LogArea&) = delete;

  const char* name() const { return name_; }
  bool enabled(LogLevel level) const {
    return static_cast<uint8_t>(level) >= lowest_.load(std::memory_order_relaxed);
  }

 private:
  friend class LogAreaList;
  const char* const name_;
  std::atomic<uint8_t> lowest_;
  LogArea* next_ = nullptr;
};

/// What a field may hold. Refers to text, so it is good for the duration of a `Log` call only.
/// Durations are written as seconds: let the name end in `_seconds`.
class LogValue {
 public:
  using Variant = std::variant<int64_t, uint64_t, double, bool, absl::string_view, std::string>;

  template <class T>
    requires(std::is_arithmetic_v<T>)
  LogValue(T value) {  // NOLINT: implicit, so that {"room", 5} works
    if constexpr (std::is_same_v<T, bool>) {
      value_ = value;
    } else if constexpr (std::is_floating_point_v<T>) {
      value_ = static_cast<double>(value);
    } else if constexpr (std::is_signed_v<T>) {
      value_ = static_cast<int64_t>(value);
    } else {
      value_ = static_cast<uint64_t>(value);
    }
  }
  LogValue(const char* value) : value_(absl::string_view(value)) {}         // NOLINT: implicit
  LogValue(absl::string_view value) : value_(value) {}                      // NOLINT: implicit
  LogValue(const std::string& value) : value_(absl::string_view(value)) {}  // NOLINT: implicit
  LogValue(absl::Duration value) : value_(absl::ToDoubleSeconds(value)) {}  // NOLINT: implicit
  /// "UNAVAILABLE [PEER_LOST] text".
  LogValue(const absl::Status& status);  // NOLINT: implicit
  template <class Tag, class Rep>
  LogValue(StrongNumber<Tag, Rep> number) : LogValue(number.value()) {}  // NOLINT: implicit
  template <class Tag>
  LogValue(const StrongString<Tag>& text) : LogValue(text.value()) {}  // NOLINT: implicit

  const Variant& variant() const { return value_; }

 private:
  Variant value_;
};

/// Name in lower_snake; not "time", "level", "area" or "event".
struct LogField {
  absl::string_view name;
  LogValue value;
};

enum class LogFormat : uint8_t { kText, kJson };

/// One line an event, to stderr:
///   2026-12-01T04:20:11.123456Z info session hello_received room 5 peer "a b"
///   {"time":"2026-…Z","level":"info","area":"session","event":"hello_received","room":5}
/// In text, values with blanks, quotes or control characters are quoted as in JSON. Bytes that are
/// not UTF-8 become '?'; a text value is cut at 4 KiB. Never log keys, capabilities or prompts.
/// Thread-safe; may block while stderr does.
void Log(LogLevel level, const LogArea& area, absl::string_view event,
         std::initializer_list<LogField> fields = {});

struct LogOptions {
  LogLevel level = LogLevel::kInfo;  ///< lines below it are dropped
  LogFormat format = LogFormat::kText;
  std::vector<std::string> verbose_areas;  ///< names, or "all"
  /// Gets each line without its newline, instead of stderr. For tests. Must not log.
  std::function<void(const std::string& line)> writer;
};

/// Replaces the options of the whole process.
/// kInvalidArgument, INVALID_FIELD: an area that no linked code defines; nothing is changed.
absl::Status ConfigureLog(const LogOptions& options);

/// The names of the areas in this program, sorted, each once.
std::vector<std::string> LogAreaNames();

/// Formats a line as `Log` does, for code that writes elsewhere.
std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level, absl::string_view area,
                          absl::string_view event, std::initializer_list<LogField> fields);

/// Lets `burst` lines through at once and then one each `interval`, for events that a peer can
/// cause as often as it likes. Thread-safe.
class LogRateLimit {
 public:
  LogRateLimit(absl::Duration interval, int64_t burst);

  /// The number of lines held back since the last that went through, when this one may be logged
  /// (log it as "suppressed"); nothing when it may not.
  std::optional<int64_t> Admit(MonotonicTime now);

 private:
  const absl::Duration interval_;
  const int64_t burst_;
  absl::Mutex mutex_;
  int64_t tokens_ ABSL_GUARDED_BY(mutex_);
  int64_t suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
  MonotonicTime refilled_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfinitePast();
};

}  // namespace pageferry
