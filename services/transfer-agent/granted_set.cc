#include "services/transfer-agent/granted_set.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/page_runs.h"
#include "libs/common/status.h"

namespace pageferry::agent {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();  // ranges were checked before

std::vector<PageRun> SlotRun(int64_t slot) {
  if (slot < 0) return {};
  return {{slot, 1}};
}

std::vector<PageRun> IndexRuns(const StateIndices& state) {
  std::vector<PageRun> runs;
  runs.reserve(state.indices.size());
  for (const int64_t index : state.indices) runs.push_back({index, 1});
  return runs;
}

absl::Status InUse(const absl::Status& status, absl::string_view what) {
  return Annotate(status, absl::StrCat(what, " that a room may write that is not drained"));
}

}  // namespace

absl::Status GrantedSet::Add(const OpenReceive& receive, const ProfileSizes& sizes) {
  if (absl::Status status = pages_.Add(receive.runs, sizes.pages); !status.ok()) {
    return InUse(status, "pages");
  }
  absl::Status status = slots_.Add(SlotRun(receive.aux_slot), kAny);
  if (!status.ok()) {
    pages_.Remove(receive.runs);
    return InUse(status, "an aux slot");
  }
  for (size_t i = 0; i < receive.states.size(); ++i) {
    const StateIndices& state = receive.states[i];
    status = states_[state.component].Add(IndexRuns(state), kAny);
    if (status.ok()) continue;
    for (size_t done = 0; done < i; ++done) {
      states_[receive.states[done].component].Remove(IndexRuns(receive.states[done]));
    }
    slots_.Remove(SlotRun(receive.aux_slot));
    pages_.Remove(receive.runs);
    return InUse(status, absl::StrCat("states of component ", state.component));
  }
  return absl::OkStatus();
}

void GrantedSet::Remove(const OpenReceive& receive) {
  pages_.Remove(receive.runs);
  slots_.Remove(SlotRun(receive.aux_slot));
  for (const StateIndices& state : receive.states) {
    states_[state.component].Remove(IndexRuns(state));
  }
}

bool GrantedSet::empty() const {
  return pages_.empty() && slots_.empty() &&
         std::ranges::all_of(states_, [](const auto& item) { return item.second.empty(); });
}

}  // namespace pageferry::agent
