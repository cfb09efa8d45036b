#include "tools/pageferryctl/room_text.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/common/error.h"
#include "tools/pageferryctl/table.h"
#include "tools/pageferryctl/words.h"

namespace pageferry::ctl {
namespace {

using agent::v1::RoomInfo;

bool Ended(const RoomInfo& room) {
  return room.state() == agent::v1::ROOM_STATE_FAILED ||
         room.state() == agent::v1::ROOM_STATE_SUCCESS;
}

std::string GrantedText(const RoomInfo& room) {
  return room.pages_granted() < 0 ? "?" : absl::StrCat(room.pages_granted());
}

/// What a live room waits for, or why one failed.
std::string WhyText(const RoomInfo& room) {
  std::vector<std::string> parts;
  if (room.has_error()) {
    parts.emplace_back(ReasonName(ReasonOf(FromErrorDetail(room.error()))));
  }
  if (Ended(room) && !room.drained()) parts.emplace_back("not drained");
  if (!room.waiting_for().empty()) {
    parts.push_back(absl::StrCat(Text(room.waiting_time()), " for ", room.waiting_for()));
  }
  return absl::StrJoin(parts, ", ");
}

std::string ErrorText(const RoomInfo& room) {
  const absl::Status error = FromErrorDetail(room.error());
  return absl::StrCat(absl::StatusCodeToString(error.code()), " ", ReasonName(ReasonOf(error)),
                      ": ", error.message());
}

}  // namespace

std::string RoomsText(const std::vector<AgentRoom>& rooms) {
  if (rooms.empty()) return "No rooms.\n";
  std::vector<std::vector<std::string>> rows;
  rows.reserve(rooms.size());
  for (const auto& [address, agent, room] : rooms) {
    rows.push_back({agent.agent_id(), absl::StrCat(room.room().room_id()),
                    absl::StrCat(room.room().attempt()), Word(room.role()), Word(room.state()),
                    Text(room.age()), Ended(room) ? "-" : Text(room.time_left()),
                    absl::StrCat(room.pages_done(), "/", GrantedText(room)), room.transport(),
                    WhyText(room)});
  }
  return FormatTable({{.title = "AGENT", .shrink = true},
                      {.title = "ROOM", .right = true},
                      {.title = "ATT", .right = true},
                      {.title = "ROLE"},
                      {.title = "STATE"},
                      {.title = "AGE", .right = true},
                      {.title = "LEFT", .right = true},
                      {.title = "PAGES", .right = true},
                      {.title = "BY"},
                      {.title = "WAITS FOR, OR WHY IT FAILED", .shrink = true}},
                     rows);
}

std::string RoomDetails(const std::vector<AgentRoom>& rooms) {
  std::string text;
  for (const auto& [address, agent, room] : rooms) {
    std::vector<std::pair<std::string, std::string>> fields = {
        {"room", absl::StrCat(room.room().room_id(), " attempt ", room.room().attempt())},
        {"agent", absl::StrCat(Text(agent), " at ", address)},
        {"role", Word(room.role())},
        {"state", Word(room.state())},
        {"drained", room.drained() ? "yes" : "no"}};
    if (!room.waiting_for().empty()) fields.emplace_back("waits for", room.waiting_for());
    fields.emplace_back("in this state", Text(room.waiting_time()));
    fields.emplace_back("age", Text(room.age()));
    if (!Ended(room)) fields.emplace_back("time left", Text(room.time_left()));
    if (!room.peer_engine_id().empty()) fields.emplace_back("peer engine", room.peer_engine_id());
    if (room.has_peer()) fields.emplace_back("peer agent", Text(room.peer()));
    if (!room.transport().empty()) fields.emplace_back("transport", room.transport());
    fields.emplace_back(
        "pages", absl::StrCat(room.pages_done(), " in place, ", room.pages_offered(), " offered, ",
                              GrantedText(room), " granted"));
    fields.emplace_back("bytes", absl::StrCat(room.bytes_done()));
    if (room.has_error()) {
      fields.emplace_back("error", ErrorText(room));
      for (const auto& [key, value] : MetadataOf(FromErrorDetail(room.error()))) {
        fields.emplace_back(absl::StrCat("  ", key), value);
      }
    }
    absl::StrAppend(&text, text.empty() ? "" : "\n", FormatFields(fields));
  }
  return text;
}

Json RoomsJson(const std::vector<AgentRoom>& rooms) {
  Json list = Json::array();
  for (const auto& [address, agent, room] : rooms) {
    Json entry = {{"agent", ToJson(agent)}, {"agent_address", address}};
    entry.update(ToJson(room));
    list.push_back(std::move(entry));
  }
  Json document;
  document["rooms"] = std::move(list);
  return document;
}

}  // namespace pageferry::ctl
