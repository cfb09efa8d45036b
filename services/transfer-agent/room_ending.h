#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "services/transfer-agent/messages.h"

/// How rooms end without success: what each end is told. Pure.
namespace pageferry::agent {

/// `own` goes to this agent's engine, `tell` to the other agent; OK tells it nothing (it knows, or
/// cannot be reached).
struct Ending {
  absl::Status own;
  absl::Status tell;
};

/// The engine's Abort: ABORTED here, PEER_ABORTED with "detail" there.
Ending AbortedByEngine(const std::string& detail);
/// The engine's FailRoom: ABORTED here, PEER_ENGINE_FAILED with "detail" there.
Ending FailedByEngine(const std::string& detail);
/// DEADLINE with "state" on both ends.
Ending DeadlinePassed(RoomState state);
/// OPERATOR_ABORTED on both ends.
Ending AbortedByOperator(const std::string& detail);
/// ENGINE_LOST on both ends.
Ending EngineHasGone(const absl::Status& why);
/// PEER_LOST here.
Ending PeerHasGone(const absl::Status& why);
/// STALE_ATTEMPT with "attempt", the one that took over, on both ends.
Ending SupersededBy(Attempt attempt);
/// The other agent said so. An error without a reason reads as PEER_ABORTED.
Ending EndedByPeer(const absl::Status& error);
/// A defect of one side that both are to hear of.
Ending BrokenRule(const absl::Status& error);

/// FAILED_PRECONDITION, PAGE_COUNT_MISMATCH with "granted", "sent".
absl::Status PageCountMismatch(int64_t granted, int64_t sent);
/// RESOURCE_EXHAUSTED, LIMIT_REACHED with "limit", "value", "retry_after_ms".
absl::Status LimitReached(const std::string& limit, int64_t value);
/// NOT_FOUND, ROOM_NOT_FOUND.
absl::Status RoomNotFound(const RoomKey& key);

/// "WAITING_FOR_INPUT": as in logs and metadata.
const char* RoomStateName(RoomState state);

/// Checksums have their field, but this release does not make any: better refused than not done.
absl::Status ChecksumUnsupported();

}  // namespace pageferry::agent
