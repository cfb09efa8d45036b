#include "services/transfer-agent/transfer_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "libs/common/page_runs.h"
#include "libs/common/status.h"
#include "libs/transport/transport.h"

namespace pageferry::agent {
namespace {

using transport::EntryPair;
using transport::Step;

absl::Status Incompatible(absl::string_view field, absl::string_view have, absl::string_view got) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, Reason::kEnginesIncompatible,
      absl::StrCat("engines differ in ", field, ": decode has ", have, ", prefill has ", got),
      {{"field", std::string(field)}, {"have", std::string(have)}, {"got", std::string(got)}});
}

std::string NameOf(const Entry& entry) {
  return absl::StrCat("entry layer ", entry.layer, " kind ", static_cast<int>(entry.kind), " part ",
                      static_cast<int>(entry.part));
}
std::string NameOf(const AuxBuffer& aux) { return absl::StrCat("aux ", aux.name); }
std::string NameOf(const StateComponent& component) {
  return absl::StrCat("state kind ", static_cast<int>(component.kind), " part ",
                      static_cast<int>(component.part));
}
std::string NameOf(const StateEntry& entry) { return absl::StrCat("state layer ", entry.layer); }

auto KeyOf(const Entry& entry) { return std::tuple(entry.layer, entry.kind, entry.part); }
const std::string& KeyOf(const AuxBuffer& aux) { return aux.name; }
auto KeyOf(const StateComponent& component) { return std::tuple(component.kind, component.part); }
int32_t KeyOf(const StateEntry& entry) { return entry.layer; }

const Buffer& BufferOf(const Entry& entry) { return entry.pages; }
const Buffer& BufferOf(const AuxBuffer& aux) { return aux.slots; }
const Buffer& BufferOf(const StateEntry& entry) { return entry.items; }

/// For each element of `target` the position of its counterpart in `source`.
template <class T>
absl::StatusOr<std::vector<size_t>> Match(const std::vector<T>& source,
                                          const std::vector<T>& target) {
  std::map<std::decay_t<decltype(KeyOf(source[0]))>, size_t> by_key;
  for (size_t i = 0; i < source.size(); ++i) {
    if (!by_key.emplace(KeyOf(source[i]), i).second) {
      return Incompatible(NameOf(source[i]), "one", "two");
    }
  }
  std::vector<size_t> positions;
  for (const T& wanted : target) {
    const auto found = by_key.find(KeyOf(wanted));
    if (found == by_key.end()) return Incompatible(NameOf(wanted), "one more", "none");
    positions.push_back(found->second);
    by_key.erase(found);
  }
  if (!by_key.empty()) {
    return Incompatible(NameOf(source[by_key.begin()->second]), "none", "one");
  }
  return positions;
}

template <class T>
absl::StatusOr<PairPlan::Pairs> PairBuffers(const std::vector<T>& source,
                                            const std::vector<T>& target) {
  PAGEFERRY_ASSIGN_OR_RETURN(const std::vector<size_t> positions, Match(source, target));
  auto pairs = std::make_shared<std::vector<EntryPair>>();
  pairs->reserve(target.size());
  for (size_t i = 0; i < target.size(); ++i) {
    const Buffer& from = BufferOf(source[positions[i]]);
    const Buffer& to = BufferOf(target[i]);
    if (from.item_size != to.item_size) {
      return Incompatible(absl::StrCat("item size of ", NameOf(target[i])),
                          absl::StrCat(to.item_size.value()), absl::StrCat(from.item_size.value()));
    }
    if (to.item_size.value() == 0) continue;  // elided at both ends
    pairs->push_back({.source_region = from.region,
                      .source_offset = from.offset,
                      .target_region = to.region,
                      .target_offset = to.offset,
                      .item_size = to.item_size});
  }
  return PairPlan::Pairs(std::move(pairs));
}

absl::Span<const int64_t> IndicesOf(absl::Span<const StateIndices> states, int64_t component) {
  for (const StateIndices& state : states) {
    if (state.component == component) return state.indices;
  }
  return {};
}

absl::Status Mismatch(absl::string_view component, int64_t have, int64_t got) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kStateMismatch,
                   absl::StrCat(component, ": decode expects ", have, ", prefill sends ", got),
                   {{"component", std::string(component)},
                    {"have", absl::StrCat(have)},
                    {"got", absl::StrCat(got)}});
}

/// The smallest number of items over buffers that are not elided, and the bytes of one item of
/// each.
template <class T>
void Measure(const std::vector<T>& elements, int64_t& items, ByteCount& bytes) {
  bool first = true;
  for (const T& element : elements) {
    const Buffer& buffer = BufferOf(element);
    if (buffer.item_size.value() == 0) continue;
    items = first ? buffer.item_count : std::min(items, buffer.item_count);
    bytes += buffer.item_size;
    first = false;
  }
  // Nothing is moved where all are elided, whatever the indices.
  if (first && !elements.empty()) items = std::numeric_limits<int32_t>::max();
}

}  // namespace

ProfileSizes SizesOf(const KvProfile& profile) {
  ProfileSizes sizes;
  Measure(profile.entries, sizes.pages, sizes.page_bytes);
  Measure(profile.aux, sizes.aux_slots, sizes.slot_bytes);
  for (const StateComponent& component : profile.states) {
    ProfileSizes::Component& measured = sizes.states.emplace_back();
    Measure(component.entries, measured.items, measured.item_bytes);
  }
  return sizes;
}

absl::Status CheckAuxSlot(int64_t slot, const ProfileSizes& sizes) {
  if (slot == -1 || (slot >= 0 && slot < sizes.aux_slots)) return absl::OkStatus();
  return InvalidField("aux_slot", absl::StrCat(slot),
                      sizes.aux_slots == 0 ? "unset: the profile has no aux buffers"
                                           : absl::StrCat("unset, or 0 to ", sizes.aux_slots - 1));
}

absl::Status CheckStates(absl::Span<const StateIndices> states, const ProfileSizes& sizes) {
  const auto components = static_cast<int64_t>(sizes.states.size());
  absl::flat_hash_set<int32_t> seen;
  for (const StateIndices& state : states) {
    if (state.component < 0 || state.component >= components ||
        !seen.insert(state.component).second) {
      return InvalidField("states.component", absl::StrCat(state.component),
                          absl::StrCat("0 to ", components - 1, ", each once"));
    }
    const int64_t items = sizes.states[static_cast<size_t>(state.component)].items;
    absl::flat_hash_set<int64_t> used;
    for (const int64_t index : state.indices) {
      if (index < 0 || index >= items || !used.insert(index).second) {
        return InvalidField("states.indices", absl::StrCat(index),
                            absl::StrCat("0 to ", items - 1, ", each once"));
      }
    }
  }
  return absl::OkStatus();
}

ByteCount BytesOf(const ProfileSizes& sizes, int64_t pages, int64_t aux_slot,
                  absl::Span<const StateIndices> states) {
  ByteCount bytes = sizes.page_bytes * pages;
  if (aux_slot >= 0) bytes += sizes.slot_bytes;
  for (const StateIndices& state : states) {
    bytes += sizes.states[static_cast<size_t>(state.component)].item_bytes *
             static_cast<int64_t>(state.indices.size());
  }
  return bytes;
}

absl::StatusOr<PairPlan> MakePairPlan(const KvProfile& source, const KvProfile& target) {
  PairPlan plan;
  PAGEFERRY_ASSIGN_OR_RETURN(plan.pages, PairBuffers(source.entries, target.entries));
  PAGEFERRY_ASSIGN_OR_RETURN(plan.aux, PairBuffers(source.aux, target.aux));
  PAGEFERRY_ASSIGN_OR_RETURN(const std::vector<size_t> positions,
                             Match(source.states, target.states));
  for (size_t i = 0; i < positions.size(); ++i) {
    PAGEFERRY_ASSIGN_OR_RETURN(
        PairPlan::Pairs pairs,
        PairBuffers(source.states[positions[i]].entries, target.states[i].entries));
    plan.states.push_back(std::move(pairs));
    plan.source_component.push_back(static_cast<int32_t>(positions[i]));
  }
  return plan;
}

absl::Status CheckExtrasPair(const PairPlan& plan, const Extras& source, const Extras& target) {
  if ((source.aux_slot >= 0) != (target.aux_slot >= 0)) {
    return Mismatch("aux", target.aux_slot >= 0 ? 1 : 0, source.aux_slot >= 0 ? 1 : 0);
  }
  for (size_t i = 0; i < plan.states.size(); ++i) {
    const auto have = IndicesOf(target.states, static_cast<int64_t>(i)).size();
    const auto got = IndicesOf(source.states, plan.source_component[i]).size();
    if (have != got) {
      return Mismatch(absl::StrCat(i), static_cast<int64_t>(have), static_cast<int64_t>(got));
    }
  }
  return absl::OkStatus();
}

std::vector<Step> BuildSteps(const PairPlan& plan, std::vector<RunPair> runs) {
  std::vector<Step> steps;
  if (!runs.empty()) steps.push_back({.entries = plan.pages, .runs = std::move(runs)});
  return steps;
}

void AppendExtraSteps(const PairPlan& plan, const Extras& source, const Extras& target,
                      std::vector<Step>& steps) {
  if (target.aux_slot >= 0 && !plan.aux->empty()) {
    steps.push_back({.entries = plan.aux, .runs = {{source.aux_slot, target.aux_slot, 1}}});
  }
  for (size_t i = 0; i < plan.states.size(); ++i) {
    const auto to = IndicesOf(target.states, static_cast<int64_t>(i));
    const auto from = IndicesOf(source.states, plan.source_component[i]);
    Step step{.entries = plan.states[i], .runs = {}};
    for (size_t n = 0; n < std::min(to.size(), from.size()); ++n) {
      RunPair* const tail = step.runs.empty() ? nullptr : &step.runs.back();
      if (tail != nullptr && tail->source_first + tail->count == from[n] &&
          tail->target_first + tail->count == to[n]) {
        ++tail->count;
      } else {
        step.runs.push_back({from[n], to[n], 1});
      }
    }
    if (!step.runs.empty() && !step.entries->empty()) steps.push_back(std::move(step));
  }
}

}  // namespace pageferry::agent
