#include "libs/common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/common/clock.h"
#include "libs/common/error.h"
#include "libs/common/utf8.h"

namespace pageferry {
namespace {

constexpr size_t kMaxTextBytes = 4096;

struct State {
  State() : logger("pageferry", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger.set_pattern("%v");
    logger.set_level(spdlog::level::trace);
    logger.flush_on(spdlog::level::trace);
  }

  spdlog::logger logger;
  absl::Mutex mutex;
  LogArea* areas ABSL_GUARDED_BY(mutex) = nullptr;
  LogLevel level ABSL_GUARDED_BY(mutex) = LogLevel::kInfo;
  std::vector<std::string> verbose ABSL_GUARDED_BY(mutex);
  std::shared_ptr<const std::function<void(const std::string&)>> writer ABSL_GUARDED_BY(mutex);
  std::atomic<LogFormat> format = LogFormat::kText;
};

State& GlobalState() {
  static State* const state = new State;  // NOLINT: never destroyed, threads may log at exit
  return *state;
}

bool Contains(const std::vector<std::string>& names, absl::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

uint8_t LowestLevel(LogLevel level, const std::vector<std::string>& verbose,
                    absl::string_view area) {
  const bool all = Contains(verbose, "all") || Contains(verbose, area);
  return static_cast<uint8_t>(all ? LogLevel::kVerbose : level);
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kVerbose:
      return "verbose";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kVerbose:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

void AppendQuoted(absl::string_view text, std::string& line) {
  line.push_back('"');
  for (const char c : ValidUtf8(text, kMaxTextBytes)) {
    switch (c) {
      case '"':
        line.append("\\\"");
        break;
      case '\\':
        line.append("\\\\");
        break;
      case '\n':
        line.append("\\n");
        break;
      case '\r':
        line.append("\\r");
        break;
      case '\t':
        line.append("\\t");
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          absl::StrAppendFormat(&line, "\\u%04x", static_cast<unsigned char>(c));
        } else {
          line.push_back(c);
        }
    }
  }
  line.push_back('"');
}

bool IsPlain(absl::string_view text) {
  if (text.empty() || text.size() > kMaxTextBytes) return false;
  return std::ranges::all_of(text,
                             [](char c) { return c > 0x20 && c < 0x7F && c != '"' && c != '\\'; });
}

void AppendText(LogFormat format, absl::string_view text, std::string& line) {
  if (format == LogFormat::kText && IsPlain(text)) {
    absl::StrAppend(&line, text);
  } else {
    AppendQuoted(text, line);
  }
}

void AppendValue(LogFormat format, const LogValue& value, std::string& line) {
  std::visit(
      [format, &line](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, bool>) {
          line.append(held ? "true" : "false");
        } else if constexpr (std::is_same_v<T, double>) {
          if (std::isfinite(held)) {
            absl::StrAppendFormat(&line, "%.9g", held);
          } else {
            AppendText(format, std::isnan(held) ? "nan" : held > 0 ? "inf" : "-inf", line);
          }
        } else if constexpr (std::is_integral_v<T>) {
          absl::StrAppend(&line, held);
        } else {
          AppendText(format, held, line);
        }
      },
      value.variant());
}

}  // namespace

class LogAreaList {
 public:
  static void Add(LogArea& area) {
    State& state = GlobalState();
    absl::MutexLock lock(&state.mutex);
    area.next_ = state.areas;
    state.areas = &area;
    area.lowest_.store(LowestLevel(state.level, state.verbose, area.name_));
  }

  static std::set<std::string> NamesLocked(const State& state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
    std::set<std::string> names;
    for (const LogArea* area = state.areas; area != nullptr; area = area->next_) {
      names.insert(area->name_);
    }
    return names;
  }

  static void ApplyLocked(State& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
    for (LogArea* area = state.areas; area != nullptr; area = area->next_) {
      area->lowest_.store(LowestLevel(state.level, state.verbose, area->name_));
    }
  }
};

LogArea::LogArea(const char* name) : name_(name), lowest_(static_cast<uint8_t>(LogLevel::kInfo)) {
  LogAreaList::Add(*this);
}

LogValue::LogValue(const absl::Status& status) {
  std::string text = absl::StatusCodeToString(status.code());
  if (const Reason reason = ReasonOf(status); reason != Reason::kUnspecified) {
    absl::StrAppend(&text, " [", ReasonName(reason), "]");
  }
  if (!status.message().empty()) absl::StrAppend(&text, " ", status.message());
  value_ = std::move(text);
}

std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level, absl::string_view area,
                          absl::string_view event, std::initializer_list<LogField> fields) {
  const std::string stamp = absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", time, absl::UTCTimeZone());
  if (format == LogFormat::kText) {
    std::string line = absl::StrCat(stamp, " ", LevelName(level), " ", area, " ", event);
    for (const LogField& field : fields) {
      absl::StrAppend(&line, " ", field.name, " ");
      AppendValue(format, field.value, line);
    }
    return line;
  }
  std::string line = absl::StrCat(R"({"time":")", stamp, R"(","level":")", LevelName(level), "\"");
  const auto append = [&line](absl::string_view name, const LogValue& value) {
    line.push_back(',');
    AppendQuoted(name, line);
    line.push_back(':');
    AppendValue(LogFormat::kJson, value, line);
  };
  append("area", area);
  append("event", event);
  for (const LogField& field : fields) append(field.name, field.value);
  line.push_back('}');
  return line;
}

void Log(LogLevel level, const LogArea& area, absl::string_view event,
         std::initializer_list<LogField> fields) {
  if (!area.enabled(level)) return;
  State& state = GlobalState();
  const std::string line =
      FormatLogLine(state.format.load(std::memory_order_relaxed), RealClock::Get().WallNow(), level,
                    area.name(), event, fields);
  std::shared_ptr<const std::function<void(const std::string&)>> writer;
  {
    absl::MutexLock lock(&state.mutex);
    writer = state.writer;
  }
  if (writer != nullptr) {
    (*writer)(line);
  } else {
    state.logger.log(SpdlogLevel(level), spdlog::string_view_t(line));
  }
}

absl::Status ConfigureLog(const LogOptions& options) {
  State& state = GlobalState();
  absl::MutexLock lock(&state.mutex);
  const std::set<std::string> known = LogAreaList::NamesLocked(state);
  for (const std::string& name : options.verbose_areas) {
    if (name != "all" && !known.contains(name)) {
      return InvalidField("log-verbose", name, absl::StrCat("all, ", absl::StrJoin(known, ", ")));
    }
  }
  state.level = options.level;
  state.verbose = options.verbose_areas;
  state.format.store(options.format);
  state.writer =
      options.writer == nullptr
          ? nullptr
          : std::make_shared<const std::function<void(const std::string&)>>(options.writer);
  LogAreaList::ApplyLocked(state);
  return absl::OkStatus();
}

std::vector<std::string> LogAreaNames() {
  State& state = GlobalState();
  absl::MutexLock lock(&state.mutex);
  const std::set<std::string> names = LogAreaList::NamesLocked(state);
  return {names.begin(), names.end()};
}

LogRateLimit::LogRateLimit(absl::Duration interval, int64_t burst)
    : interval_(std::max(interval, absl::Nanoseconds(1))),
      burst_(std::max<int64_t>(burst, 1)),
      tokens_(burst_) {}

std::optional<int64_t> LogRateLimit::Admit(MonotonicTime now) {
  absl::MutexLock lock(&mutex_);
  if (refilled_ == MonotonicTime::InfinitePast()) refilled_ = now;
  absl::Duration rest;
  const int64_t earned = absl::IDivDuration(now - refilled_, interval_, &rest);
  if (earned > 0) {
    tokens_ = std::min(burst_, SaturatingAdd(tokens_, earned));
    refilled_ = now - rest;
  }
  if (tokens_ == 0) {
    ++suppressed_;
    return std::nullopt;
  }
  --tokens_;
  return std::exchange(suppressed_, 0);
}

}  // namespace pageferry
