#include "tests/service/bootstrap/bootstrap_fixture.h"

namespace pageferry::bootstrap {
namespace {

using absl::StatusCode;
using testing::Optional;

constexpr absl::Duration kBatch = absl::Milliseconds(10);

v1::WatchEnginesRequest Watch(bool with_ranks = true, int64_t resume = 0) {
  v1::WatchEnginesRequest request;
  request.set_include_ranks(with_ranks);
  request.set_resume_version(resume);
  return request;
}

/// "snapshot warming a:3 b:16!" or "change a:4 -b" or "progress": engines with their live ranks,
/// those that are ready with "!".
std::string Text(const std::optional<v1::WatchEnginesResponse>& message) {
  if (!message) return "nothing";
  if (message->has_progress()) return "progress";
  std::string text = message->has_snapshot() ? "snapshot" : "change";
  if (message->snapshot().warming_up()) text += " warming";
  const auto& engines =
      message->has_snapshot() ? message->snapshot().engines() : message->change().engines();
  for (const v1::Engine& engine : engines) {
    absl::StrAppend(&text, " ", engine.key().engine_id(), ":", engine.live_count(),
                    engine.ready() ? "!" : "");
    EXPECT_EQ(engine.live_count() + engine.missing_count(), 16);
  }
  for (const auto& key : message->change().removed()) absl::StrAppend(&text, " -", key.engine_id());
  return text;
}

TEST_F(BootstrapTest, AWatchBeginsWithASnapshotAndTellsChangesThatOccurTogetherTogether) {
  ASSERT_THAT(Register(Claim(0, "a")), IsOk());
  clock_.Advance(kBatch);
  WatchClient watch(*stub_, Watch());
  const auto snapshot = watch.Next();
  EXPECT_EQ(Text(snapshot), "snapshot a:1");
  EXPECT_EQ(snapshot->snapshot().engines(0).ranks(0).agent().agent_id(), "agent-0");
  EXPECT_FALSE(snapshot->snapshot().engines(0).ranks(0).has_ttl());
  ASSERT_THAT(Register(Claim(1, "a")), IsOk());
  ASSERT_THAT(Register(Claim(2, "a")), IsOk());
  ASSERT_THAT(Register(Claim(0, "b")), IsOk());
  clock_.Advance(kBatch);
  const auto change = watch.Next();
  EXPECT_GT(change->version(), snapshot->version());
  EXPECT_TRUE(Text(change) == "change a:3 b:1" || Text(change) == "change b:1 a:3") << Text(change);
  EXPECT_EQ(change->version(), GetEngine("a").ok() ? change->version() : 0);
}

TEST_F(BootstrapTest, AWatchShowsItsOpenerWhatWasAnsweredBefore) {
  RegisterAll();
  ASSERT_OK_AND_ASSIGN(const auto last, Register(Claim(0)));
  WatchClient watch(*stub_, Watch());
  WatchClient resumed(*stub_, Watch(true, last.version()));
  ASSERT_TRUE(Eventually([&] { return Metric("pageferry_bootstrap_watchers") == 2; }));
  EXPECT_TRUE(Eventually([&] { return clock_.Advance(absl::ZeroDuration()) > 0; }));
  EXPECT_EQ(Text(watch.Next()), "snapshot prefill-0:16!");
  ASSERT_THAT(Register(Claim(0, "b")), IsOk());
  clock_.Advance(kBatch);
  EXPECT_EQ(Text(resumed.Next()), "change b:1");
}

TEST_F(BootstrapTest, AnEndedKeepAliveIsReportedWithinTheTtlAndASecond) {
  RegisterAll();
  ASSERT_OK_AND_ASSIGN(const auto lost, Register(Claim(6)));
  clock_.Advance(kBatch);
  WatchClient watch(*stub_, Watch());
  WatchClient ready_watch(*stub_, Watch(/*with_ranks=*/false));
  EXPECT_EQ(Text(watch.Next()), "snapshot prefill-0:16!");
  EXPECT_EQ(Text(ready_watch.Next()), "snapshot prefill-0:16!");
  KeepAliveClient others(*stub_);
  std::vector<int64_t> leases;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != 6) leases.push_back(Register(Claim(rank))->lease_id());
  }
  const MonotonicTime start = clock_.Now();
  std::string told;
  while (told.empty() && clock_.Now() - start < absl::Seconds(10)) {
    ASSERT_EQ(others.Renew(leases).find("LEASE"), std::string::npos);
    clock_.Advance(absl::Milliseconds(500));
    if (clock_.Now() - start < absl::Seconds(3)) continue;
    if (const auto change = watch.Next(absl::Seconds(1))) told = Text(change);
  }
  EXPECT_EQ(told, "change prefill-0:15");
  EXPECT_LE(clock_.Now() - start, absl::Seconds(4));
  EXPECT_EQ(Text(ready_watch.Next()), "change prefill-0:15");
  EXPECT_FALSE(GetEngine()->ready());
}

TEST_F(BootstrapTest, WithoutRanksOnlyEnginesAndReadinessAreTold) {
  WatchClient watch(*stub_, Watch(/*with_ranks=*/false));
  EXPECT_EQ(Text(watch.Next()), "snapshot");
  ASSERT_THAT(Register(Claim(0)), IsOk());
  clock_.Advance(kBatch);
  EXPECT_EQ(Text(watch.Next()), "change prefill-0:1");
  ASSERT_THAT(Register(Claim(1)), IsOk());
  clock_.Advance(kBatch);
  RegisterAll();
  clock_.Advance(kBatch);
  const auto ready = watch.Next();
  EXPECT_EQ(Text(ready), "change prefill-0:16!");
  EXPECT_EQ(ready->change().engines(0).ranks_size(), 0);
}

TEST_F(BootstrapTest, AWatchResumesByVersionAndHearsOfTheRemoved) {
  ASSERT_THAT(Register(Claim(0, "a")), IsOk());
  ASSERT_THAT(Register(Claim(0, "b")), IsOk());
  clock_.Advance(kBatch);
  int64_t version = 0;
  {
    WatchClient watch(*stub_, Watch());
    version = watch.Next()->version();
  }
  WatchClient idle(*stub_, Watch(true, version));
  ASSERT_THAT(Register(Claim(1, "b")), IsOk());
  clock_.Advance(kBatch);
  EXPECT_EQ(Text(idle.Next()), "change b:2");
  {
    WatchClient watch(*stub_, Watch(true, version));
    EXPECT_EQ(Text(watch.Next()), "change b:2");
  }
  clock_.Advance(absl::Seconds(3) + kBatch);
  clock_.Advance(absl::Minutes(10) + kBatch);
  WatchClient watch(*stub_, Watch(true, version));
  const auto removed = watch.Next();
  EXPECT_EQ(removed->change().removed_size(), 2) << Text(removed);
  WatchClient anew(*stub_, Watch());
  EXPECT_EQ(Text(anew.Next()), "snapshot");
}

TEST_F(BootstrapTest, AVersionThatIsNotKeptIsCompactedAlsoAfterARestart) {
  WatchClient watch(*stub_, Watch(true, 5));
  EXPECT_THAT(watch.End(), StatusIs(StatusCode::kOutOfRange, Reason::kCompacted));
  ASSERT_THAT(Register(Claim(0)), IsOk());
  clock_.Advance(kBatch);
  const int64_t version = WatchClient(*stub_, Watch()).Next()->version();
  WatchClient future(*stub_, Watch(true, version + 1'000'000'000));
  EXPECT_THAT(future.End(), HasReason(Reason::kCompacted));
  StartServer();
  WatchClient after(*stub_, Watch(true, version));
  EXPECT_THAT(after.End(), HasReason(Reason::kCompacted));
}

TEST_F(BootstrapTest, AfterAWarmUpThereComesASnapshotThatCounts) {
  StartServer();
  WatchClient watch(*stub_, Watch());
  EXPECT_EQ(Text(watch.Next()), "snapshot warming");
  RegisterAll();
  clock_.Advance(kBatch);
  EXPECT_EQ(Text(watch.Next()), "change prefill-0:16!");
  for (int second = 0; second < 7; ++second) {
    RegisterAll();
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(Text(watch.Next()), "snapshot prefill-0:16!");
}

TEST_F(BootstrapTest, AWatchResumedFromAWarmUpHearsOfItsEnd) {
  StartServer();
  RegisterAll();
  clock_.Advance(kBatch);
  int64_t version = 0;
  {
    WatchClient watch(*stub_, Watch());
    const auto snapshot = watch.Next();
    EXPECT_EQ(Text(snapshot), "snapshot warming prefill-0:16!");
    version = snapshot->version();
  }
  // It resumes within the warm-up, and sees its end.
  WatchClient within(*stub_, Watch(true, version));
  for (int second = 0; second < 7; ++second) {
    RegisterAll();
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(Text(within.Next()), "snapshot prefill-0:16!");
  // It resumes after the end, from before it.
  WatchClient after(*stub_, Watch(true, version));
  EXPECT_EQ(Text(after.Next()), "snapshot prefill-0:16!");
}

TEST_F(BootstrapTest, AWatchIsFilteredByNamespaceAndName) {
  const auto claim = [](const std::string& name_space, const std::string& engine) {
    auto request = Claim(0, engine);
    request.mutable_engine()->set_namespace_(name_space);
    return request;
  };
  auto all = Watch();
  all.set_namespace_("*");
  auto one = Watch();
  one.set_namespace_("blue");
  one.add_engine_ids("b");
  WatchClient watch_all(*stub_, all);
  WatchClient watch_one(*stub_, one);
  WatchClient watch_default(*stub_, Watch());
  for (WatchClient* watch : {&watch_all, &watch_one, &watch_default}) {
    EXPECT_EQ(Text(watch->Next()), "snapshot");
  }
  for (const char* engine : {"a", "b"}) {
    ASSERT_THAT(Register(claim("blue", engine)), IsOk());
    clock_.Advance(kBatch);
    EXPECT_EQ(Text(watch_all.Next()), absl::StrCat("change ", engine, ":1"));
  }
  EXPECT_EQ(Text(watch_one.Next()), "change b:1");
  WatchClient again(*stub_, one);
  EXPECT_EQ(Text(again.Next()), "snapshot b:1");
  ASSERT_THAT(Register(claim("", "c")), IsOk());
  clock_.Advance(kBatch);
  EXPECT_EQ(Text(watch_default.Next()), "change c:1");
}

TEST_F(BootstrapTest, AQuietWatchShowsProgressEachTenSeconds) {
  WatchClient watch(*stub_, Watch());
  const auto snapshot = watch.Next();
  for (int round = 0; round < 3; ++round) {
    std::optional<v1::WatchEnginesResponse> sign;
    for (int second = 0; second < 10 && !sign; ++second) {
      clock_.Advance(absl::Seconds(1));
      sign = watch.Next(second < 6 ? absl::ZeroDuration() : absl::Milliseconds(500));
    }
    ASSERT_EQ(Text(sign), "progress");
    EXPECT_GE(sign->version(), snapshot->version());
  }
}

TEST_F(BootstrapTest, ASlowWatcherIsCutOffAndDelaysNobody) {
  // Labels make each message large enough to fill what the connection buffers.
  const auto claim = [](int rank, int port) {
    auto request = Claim(rank);
    for (int label = 0; label < 32; ++label) {
      (*request.mutable_labels())[absl::StrCat("name", label)] = std::string(60, 'x');
    }
    request.mutable_endpoint()->set_port(port);
    request.mutable_ttl()->set_seconds(600);
    return request;
  };
  const auto slow_channel = MakeChannel(server_->address());
  const std::unique_ptr<v1::Bootstrap::StubInterface> slow_stub =
      v1::Bootstrap::NewStub(slow_channel);
  WatchClient slow(*slow_stub, Watch(), /*lazy=*/true);
  WatchClient quick(*stub_, Watch());
  EXPECT_EQ(Text(quick.Next()), "snapshot");
  for (int port = 1; port <= 300; ++port) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (port > 1 && rank > 0) break;
      ASSERT_THAT(Register(claim(rank, port)), IsOk());
    }
    clock_.Advance(kBatch);
    ASSERT_EQ(Text(quick.Next()), "change prefill-0:16!");
  }
  EXPECT_EQ(Metric("pageferry_bootstrap_watchers"), 2);
  EXPECT_EQ(Metric("pageferry_bootstrap_watch_cut_offs_total"), 0);
  // Writes end in real time, so the quick one may have one under way, but never an old one: what
  // comes in the middle says that those before are over.
  for (int second = 0; second < 16; ++second) clock_.Advance(absl::Seconds(1));
  ASSERT_THAT(Register(claim(0, 301)), IsOk());
  clock_.Advance(kBatch);
  std::string sign = Text(quick.Next());
  while (sign == "progress") sign = Text(quick.Next());
  ASSERT_EQ(sign, "change prefill-0:16!");
  for (int second = 0; second < 16; ++second) clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Eventually([&] { return Metric("pageferry_bootstrap_watch_cut_offs_total") == 1; }));
  slow.Read();
  EXPECT_THAT(slow.End(), StatusIs(StatusCode::kResourceExhausted, Reason::kSlowConsumer));
  EXPECT_TRUE(Eventually([&] { return Metric("pageferry_bootstrap_watchers") == 1; }));
}

TEST_F(BootstrapTest, AWatcherThatNeverReadsIsDroppedInTheEnd) {
  ServerOptions options;
  options.watch_stall_timeout = absl::Seconds(5);
  StartWarmServer(options);
  WatchClient slow(*stub_, Watch(), /*lazy=*/true);
  for (int round = 0; round < 300; ++round) {
    auto request = Claim(round % kRanks);
    for (int label = 0; label < 32; ++label) {
      (*request.mutable_labels())[absl::StrCat(round, "-", label)] = std::string(60, 'x');
    }
    request.mutable_ttl()->set_seconds(600);
    ASSERT_THAT(Register(request), IsOk());
    clock_.Advance(kBatch);
  }
  clock_.Advance(absl::Seconds(20));
  EXPECT_TRUE(Eventually([&] { return Metric("pageferry_bootstrap_watchers") == 0; }));
}

TEST_F(BootstrapTest, WatchersAreBounded) {
  ServerOptions options;
  options.max_watchers = 1;
  StartWarmServer(options);
  WatchClient first(*stub_, Watch());
  EXPECT_EQ(Text(first.Next()), "snapshot");
  WatchClient second(*stub_, Watch());
  EXPECT_THAT(second.End(), StatusIs(StatusCode::kResourceExhausted, Reason::kLimitReached));
}

TEST_F(BootstrapTest, AWatchThatDoesNotFitAMessageSaysSo) {
  ServerOptions options;
  options.max_message = ByteCount(64 << 10);
  StartWarmServer(options);
  const auto claim = [](int number) {
    auto request = Claim(0, absl::StrCat("engine-", number));
    request.mutable_profile()->set_model_fingerprint(std::string(256, 'f'));
    return request;
  };
  WatchClient early(*stub_, Watch());
  EXPECT_EQ(Text(early.Next()), "snapshot");
  constexpr int kEngines = 200;
  for (int number = 0; number < kEngines; ++number) {
    ASSERT_THAT(Register(claim(number)), IsOk());
  }
  clock_.Advance(kBatch);
  // Changes come in parts; a part leaves the version where it was, but for the last.
  int seen = 0;
  std::vector<int64_t> versions;
  while (seen < kEngines) {
    const auto part = early.Next();
    ASSERT_TRUE(part);
    seen += part->change().engines_size();
    versions.push_back(part->version());
  }
  EXPECT_GT(versions.size(), 1);
  EXPECT_EQ(versions.front(), versions[versions.size() - 2]);
  EXPECT_GT(versions.back(), versions.front());
  WatchClient late(*stub_, Watch());
  EXPECT_THAT(late.End(), StatusIs(StatusCode::kResourceExhausted, Reason::kTooLarge));
}

TEST_F(BootstrapTest, ADrainEndsEveryStreamWithItsReason) {
  WatchClient watch(*stub_, Watch());
  EXPECT_EQ(Text(watch.Next()), "snapshot");
  KeepAliveClient keep_alive(*stub_);
  EXPECT_EQ(keep_alive.Renew({1}), "LEASE_NOT_FOUND");
  const absl::Time start = absl::Now();
  server_->Stop();
  EXPECT_LT(absl::Now() - start, absl::Seconds(4)) << "streams must not use up the drain timeout";
  EXPECT_THAT(watch.End(), StatusIs(StatusCode::kUnavailable, Reason::kDraining));
  EXPECT_THAT(keep_alive.End(), StatusIs(StatusCode::kUnavailable, Reason::kDraining));
}

TEST_F(BootstrapTest, ABadKeepAliveEndsTheStream) {
  KeepAliveClient keep_alive(*stub_);
  EXPECT_EQ(keep_alive.Renew({}), "ended");
  EXPECT_THAT(keep_alive.End(), StatusIs(StatusCode::kInvalidArgument, Reason::kInvalidField));
}

}  // namespace
}  // namespace pageferry::bootstrap
