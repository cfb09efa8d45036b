# The core of the agent: all that is decided, without gRPC, UCX or generated code. Included by
# CMakeLists.txt of this folder. Only core_loop has a thread.

pageferry_cc_library(
  NAME agent_types
  HDRS profile.h messages.h ports.h agent_core.h
  DEPS absl::status absl::statusor absl::time pageferry::error pageferry::ids pageferry::page_runs
       pageferry::topology pageferry::transport)
pageferry_cc_library(
  NAME agent_transfer_plan
  HDRS transfer_plan.h
  SRCS transfer_plan.cc
  DEPS absl::span pageferry::agent_types
  PRIVATE_DEPS absl::flat_hash_set absl::strings pageferry::status)
pageferry_cc_library(
  NAME agent_engines_match
  HDRS engines_match.h
  SRCS engines_match.cc
  DEPS pageferry::agent_types
  PRIVATE_DEPS absl::strings pageferry::agent_transfer_plan pageferry::status)
pageferry_cc_library(
  NAME agent_core
  HDRS agent_core_impl.h farewells.h granted_set.h page_set.h receive_room.h room.h room_ending.h room_table.h send_room.h
       tombstones.h
  SRCS agent_core.cc agent_core_engine.cc agent_core_peers.cc agent_core_views.cc granted_set.cc page_set.cc
       receive_room.cc room.cc room_ending.cc send_room.cc tombstones.cc
  DEPS absl::btree absl::flat_hash_map absl::span pageferry::agent_transfer_plan
       pageferry::agent_types pageferry::lease_table
  PRIVATE_DEPS absl::strings pageferry::status)
pageferry_cc_library(
  NAME agent_core_loop
  HDRS core_loop.h
  SRCS core_loop.cc
  DEPS absl::any_invocable absl::core_headers absl::synchronization pageferry::agent_core
       pageferry::clock pageferry::scheduler pageferry::steady_condition Threads::Threads)
