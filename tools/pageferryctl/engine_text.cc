#include "tools/pageferryctl/engine_text.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/common/topology.h"
#include "tools/pageferryctl/table.h"
#include "tools/pageferryctl/words.h"

namespace pageferry::ctl {
namespace {

using bootstrap::v1::Engine;
using bootstrap::v1::Rank;

constexpr size_t kMissingWidth = 40;

ParallelShape ShapeOf(const Engine& engine) {
  return {.dp = engine.shape().dp(),
          .cp = engine.shape().cp(),
          .tp = engine.shape().tp(),
          .pp = engine.shape().pp()};
}

std::string ShapeText(const Engine& engine) {
  const ParallelShape shape = ShapeOf(engine);
  return absl::StrCat(shape.dp, "x", shape.cp, "x", shape.tp, "x", shape.pp);
}

std::string LiveText(const Engine& engine) {
  return absl::StrCat(engine.live_count(), "/", engine.live_count() + engine.missing_count());
}

/// The first missing coordinates by name, and how many more there are.
std::string MissingText(const Engine& engine) {
  std::string text;
  int shown = 0;
  for (const topology::v1::RankCoordinate& coordinate : engine.missing()) {
    const std::string name = Text(coordinate);
    if (shown > 0 && text.size() + name.size() + 2 > kMissingWidth) break;
    absl::StrAppend(&text, shown > 0 ? ", " : "", name);
    ++shown;
  }
  const int more = engine.missing_count() - shown;
  return more > 0 ? absl::StrCat(text, " +", more) : text;
}

std::vector<std::string> RankRow(const Rank& rank) {
  return {Text(rank.coordinate()),
          rank.agent().agent_id(),
          absl::StrCat(rank.agent().epoch()),
          Text(rank.endpoint()),
          rank.has_ttl() ? Text(rank.ttl()) : "",
          absl::StrJoin(rank.transports(), ",")};
}

}  // namespace

std::string EnginesText(const bootstrap::v1::ListEnginesResponse& engines, bool all_namespaces) {
  std::vector<Column> columns;
  if (all_namespaces) columns.push_back({.title = "NAMESPACE", .shrink = true});
  columns.push_back({.title = "ENGINE", .shrink = true});
  for (const char* const title : {"ROLE", "DPxCPxTPxPP", "READY"}) {
    columns.push_back({.title = title});
  }
  columns.push_back({.title = "LIVE", .right = true});
  columns.push_back({.title = "MISSING"});
  std::vector<std::vector<std::string>> rows;
  rows.reserve(static_cast<size_t>(engines.engines_size()));
  for (const Engine& engine : engines.engines()) {
    std::vector<std::string> row;
    if (all_namespaces) row.push_back(engine.key().namespace_());
    for (std::string cell :
         {engine.key().engine_id(), Word(engine.role()), ShapeText(engine),
          std::string(engine.ready() ? "yes" : "no"), LiveText(engine), MissingText(engine)}) {
      row.push_back(std::move(cell));
    }
    rows.push_back(std::move(row));
  }
  std::string text = rows.empty() ? "No engines.\n" : FormatTable(columns, rows);
  absl::StrAppend(&text, "Table version ", engines.version(), ".\n");
  if (engines.warming_up()) {
    absl::StrAppend(&text,
                    "WARMING UP: the service started empty a short time ago; engines that are not "
                    "listed may exist.\n");
  }
  return text;
}

std::string RanksText(const bootstrap::v1::GetEngineResponse& response) {
  const Engine& engine = response.engine();
  const ParallelShape shape = ShapeOf(engine);
  std::map<RankIndex, const Rank*> live;
  std::vector<std::vector<std::string>> rows;
  const bool sound = ValidateShape(shape).ok();
  for (const Rank& rank : engine.ranks()) {
    const RankCoordinate coordinate{.dp = rank.coordinate().dp(),
                                    .cp = rank.coordinate().cp(),
                                    .tp = rank.coordinate().tp(),
                                    .pp = rank.coordinate().pp()};
    if (sound && ValidateCoordinate(coordinate, shape).ok()) {
      live[ToRankIndex(coordinate, shape)] = &rank;
    } else {
      rows.push_back(RankRow(rank));
    }
  }
  for (int64_t index = 0; sound && index < RankCount(shape); ++index) {
    const auto found = live.find(RankIndex(index));
    if (found != live.end()) {
      rows.push_back(RankRow(*found->second));
    } else {
      rows.push_back({ToString(ToCoordinate(RankIndex(index), shape)), "missing"});
    }
  }
  return absl::StrCat(
      Printable(absl::StrCat("Engine ", engine.key().engine_id(), " in ", engine.key().namespace_(),
                             ": ", Word(engine.role()), ", ", ToString(shape), ", ",
                             LiveText(engine), " live, ", engine.ready() ? "ready" : "not ready",
                             ", table version ", response.version(), ".")),
      "\n",
      FormatTable({{.title = "COORDINATE"},
                   {.title = "AGENT", .shrink = true},
                   {.title = "EPOCH", .right = true},
                   {.title = "ENDPOINT", .shrink = true},
                   {.title = "TTL", .right = true},
                   {.title = "TRANSPORTS", .shrink = true}},
                  rows));
}

}  // namespace pageferry::ctl
