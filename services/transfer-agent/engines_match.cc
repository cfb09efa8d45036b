#include "services/transfer-agent/engines_match.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/common/topology.h"
#include "services/transfer-agent/transfer_plan.h"

namespace pageferry::agent {
namespace {

absl::Status CheckShapes(const ParallelShape& prefill, const ParallelShape& decode) {
  // DP ranks hold whole caches, each for itself: any of them can take from any.
  ParallelShape wanted = decode;
  wanted.dp = prefill.dp;
  if (prefill == wanted) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kUnimplemented, Reason::kUnsupported,
      absl::StrCat("shapes that differ in more than dp are not supported yet: prefill ",
                   ToString(prefill), ", decode ", ToString(decode)),
      {{"prefill_shape", ToString(prefill)}, {"decode_shape", ToString(decode)}});
}

/// Collects the first difference.
class Comparison {
 public:
  void Expect(absl::string_view field, absl::string_view have, absl::string_view got) {
    if (!status_.ok() || have == got) return;
    status_ = MakeError(
        absl::StatusCode::kFailedPrecondition, Reason::kEnginesIncompatible,
        absl::StrCat("engines differ in ", field, ": decode has ", have, ", prefill has ", got),
        {{"field", std::string(field)}, {"have", std::string(have)}, {"got", std::string(got)}});
  }
  void Expect(absl::string_view field, int64_t have, int64_t got) {
    Expect(field, absl::StrCat(have), absl::StrCat(got));
  }
  template <class Enum>
  void ExpectEnum(absl::string_view field, Enum have, Enum got) {
    Expect(field, static_cast<int64_t>(have), static_cast<int64_t>(got));
  }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

/// Components pair by (kind, part), which MakePairPlan checks; the rest is compared here.
void CompareStates(const KvProfile& decode, const KvProfile& prefill, Comparison& comparison) {
  for (const StateComponent& have : decode.states) {
    for (const StateComponent& got : prefill.states) {
      if (got.kind != have.kind || got.part != have.part) continue;
      comparison.Expect("state page_tokens", have.page_tokens, got.page_tokens);
      comparison.ExpectEnum("state layout", have.layout, got.layout);
    }
  }
}

}  // namespace

absl::Status EnginesMatch(const EngineInfo& prefill, const EngineInfo& decode) {
  Comparison who;
  who.Expect("namespace", decode.name_space.value(), prefill.name_space.value());
  who.ExpectEnum("role of prefill", Role::kPrefill, prefill.role);
  who.ExpectEnum("role of decode", decode.role, Role::kDecode);
  PAGEFERRY_RETURN_IF_ERROR(who.status());
  PAGEFERRY_RETURN_IF_ERROR(CheckShapes(prefill.shape, decode.shape));

  RankCoordinate wanted = decode.coordinate;
  wanted.dp = prefill.coordinate.dp;
  Comparison caches;
  caches.Expect("coordinate", ToString(wanted), ToString(prefill.coordinate));
  const KvProfile& have = decode.profile;
  const KvProfile& got = prefill.profile;
  if (!have.model_fingerprint.empty() && !got.model_fingerprint.empty()) {
    caches.Expect("model_fingerprint", have.model_fingerprint, got.model_fingerprint);
  }
  caches.Expect("page_tokens", have.page_tokens, got.page_tokens);
  caches.ExpectEnum("data_type", have.data_type, got.data_type);
  caches.ExpectEnum("layout", have.layout, got.layout);
  caches.ExpectEnum("attention", have.attention, got.attention);
  caches.Expect("total_kv_heads", have.total_kv_heads, got.total_kv_heads);
  caches.Expect("rank_kv_heads", have.rank_kv_heads, got.rank_kv_heads);
  caches.Expect("head_dim", have.head_dim, got.head_dim);
  caches.Expect("kv_shards", have.kv_shards, got.kv_shards);
  caches.Expect("decode_cp", have.decode_cp, got.decode_cp);
  caches.Expect("dsa_layer_split", have.dsa_layer_split ? 1 : 0, got.dsa_layer_split ? 1 : 0);
  CompareStates(have, got, caches);
  PAGEFERRY_RETURN_IF_ERROR(caches.status());
  return MakePairPlan(got, have).status();
}

absl::StatusOr<PrefillRank> PrefillCoordinateFor(const RankQuery& query,
                                                 const ParallelShape& prefill, DpPolicy policy) {
  PAGEFERRY_RETURN_IF_ERROR(ValidateShape(prefill));
  PAGEFERRY_RETURN_IF_ERROR(CheckShapes(prefill, query.shape));
  if (query.room.value() < 0) {
    return InvalidField("room_id", absl::StrCat(query.room.value()), "0 to 2^63-1");
  }
  PrefillRank rank{.coordinate = query.coordinate};
  rank.coordinate.dp = 0;
  if (query.dp_rank.has_value()) {
    if (*query.dp_rank < 0 || *query.dp_rank >= prefill.dp) {
      return InvalidField("prefill_dp_rank", absl::StrCat(*query.dp_rank),
                          absl::StrCat("0 to ", prefill.dp - 1));
    }
    rank.coordinate.dp = *query.dp_rank;
    rank.dp_source = DpSource::kHint;
  } else if (prefill.dp == 1) {
    rank.dp_source = DpSource::kOnlyOne;
  } else if (policy == DpPolicy::kDirectory) {
    rank.dp_source = DpSource::kDirectory;
  } else {
    rank.coordinate.dp = query.room.value() % prefill.dp;
    rank.dp_source = DpSource::kRoomModulo;
  }
  return rank;
}

}  // namespace pageferry::agent
