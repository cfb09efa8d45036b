#pragma once

#include <string>
#include <utility>

#include "tests/unit/transfer-agent/core_fixture.h"

namespace pageferry::agent {

/// The core of a prefill agent, and a room of two pages.
class PrefillCoreTest : public CoreTest {
 protected:
  PrefillCoreTest() : CoreTest(Role::kPrefill) {}

  void Open(int64_t attempt = 0, const std::string& capability = "", int64_t room = 9) {
    Say(OpenSend{
        .room = Key(room, attempt), .timeout = absl::Seconds(30), .capability = capability});
  }
  static Grant MakeGrant(int64_t attempt = 1, int64_t room = 9) {
    return {.room = Key(room, attempt), .runs = {{10, 2}}, .timeout = absl::Seconds(60)};
  }
  void GetGrant(int64_t attempt = 1, PeerId peer = kPeer, const std::string& capability = "") {
    Grant grant = MakeGrant(attempt);
    grant.capability = capability;
    Hear(std::move(grant), peer);
  }
  void SendAll(int64_t attempt = 0) {
    Say(SendChunk{.room = Key(9, attempt), .runs = {{0, 2}}, .last = true});
  }
  void TakeAll(int64_t attempt = 1) {
    Hear(Taken{.room = Key(9, attempt), .pages = 2, .bytes = ByteCount(64), .complete = true});
  }
  void Clear() { Events(), Frames(); }
};

}  // namespace pageferry::agent
