#include "services/transfer-agent/room_ending.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::agent {
namespace {

constexpr int64_t kRetryAfterMs = 1000;

absl::Status WithDetail(Reason reason, const char* text, const std::string& detail) {
  return MakeError(absl::StatusCode::kAborted, reason,
                   detail.empty() ? text : absl::StrCat(text, ": ", detail), {{"detail", detail}});
}

}  // namespace

Ending AbortedByEngine(const std::string& detail) {
  return {
      .own = WithDetail(Reason::kAborted, "aborted by this engine", detail),
      .tell = WithDetail(Reason::kPeerAborted, "aborted by the engine at the other end", detail)};
}

Ending FailedByEngine(const std::string& detail) {
  return {
      .own = WithDetail(Reason::kAborted, "failed by this engine", detail),
      .tell = WithDetail(Reason::kPeerEngineFailed, "the engine at the other end failed", detail)};
}

Ending DeadlinePassed(RoomState state) {
  const absl::Status error =
      MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline,
                absl::StrCat("deadline passed in state ", RoomStateName(state)),
                {{"state", RoomStateName(state)}});
  return {.own = error, .tell = error};
}

Ending AbortedByOperator(const std::string& detail) {
  const absl::Status error = WithDetail(Reason::kOperatorAborted, "aborted by an operator", detail);
  return {.own = error, .tell = error};
}

Ending EngineHasGone(const absl::Status& why) {
  const absl::Status error =
      MakeError(absl::StatusCode::kUnavailable, Reason::kEngineLost,
                absl::StrCat("the engine has gone: ", std::string(why.message())));
  return {.own = error, .tell = error};
}

Ending PeerHasGone(const absl::Status& why) {
  return {.own = MakeError(absl::StatusCode::kUnavailable, Reason::kPeerLost,
                           absl::StrCat("the session has ended: ", std::string(why.message()))),
          .tell = absl::OkStatus()};
}

Ending SupersededBy(Attempt attempt) {
  const absl::Status error = MakeError(absl::StatusCode::kFailedPrecondition, Reason::kStaleAttempt,
                                       absl::StrCat("attempt ", attempt.value(), " has taken over"),
                                       {{"attempt", absl::StrCat(attempt.value())}});
  return {.own = error, .tell = error};
}

Ending EndedByPeer(const absl::Status& error) {
  if (!error.ok() && ReasonOf(error) != Reason::kUnspecified) {
    return {.own = error, .tell = absl::OkStatus()};
  }
  return {.own = WithDetail(Reason::kPeerAborted, "ended by the other agent",
                            std::string(error.message())),
          .tell = absl::OkStatus()};
}

Ending BrokenRule(const absl::Status& error) { return {.own = error, .tell = error}; }

absl::Status PageCountMismatch(int64_t granted, int64_t sent) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kPageCountMismatch,
                   absl::StrCat("pages granted ", granted, " sent ", sent),
                   {{"granted", absl::StrCat(granted)}, {"sent", absl::StrCat(sent)}});
}

absl::Status LimitReached(const std::string& limit, int64_t value) {
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                   absl::StrCat("limit of ", limit, " reached: ", value),
                   {{"limit", limit},
                    {"value", absl::StrCat(value)},
                    {"retry_after_ms", absl::StrCat(kRetryAfterMs)}});
}

absl::Status RoomNotFound(const RoomKey& key) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kRoomNotFound,
                   absl::StrCat("no room ", key.id.value(), " attempt ", key.attempt.value()));
}

const char* RoomStateName(RoomState state) {
  switch (state) {
    case RoomState::kFailed:
      return "FAILED";
    case RoomState::kBootstrapping:
      return "BOOTSTRAPPING";
    case RoomState::kWaitingForInput:
      return "WAITING_FOR_INPUT";
    case RoomState::kTransferring:
      return "TRANSFERRING";
    case RoomState::kSuccess:
      return "SUCCESS";
  }
  return "UNKNOWN";
}

absl::Status ChecksumUnsupported() {
  return MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                   "checksums are not supported yet", {{"feature", "checksum"}});
}

}  // namespace pageferry::agent
