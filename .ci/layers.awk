# The rules of check_layers.sh that need to read C++. Reads all files, then follows includes.

function report(where, what) {
  print where ": " what
  bad = 1
}

# Pure files: decisions only. No gRPC, UCX, thread, lock or clock, not even through a header.
function is_pure(file) {
  return file ~ /^libs\/common\/(ids|lease_table|topology|page_runs|page_plan|utf8|stream_outbox)\.(h|cc)$/ ||
         file ~ /^services\/bootstrap\/(port_table|engine_cells|room_directory|records|change_index)\.(h|cc)$/ ||
         file ~ /^services\/transfer-agent\/(room|room_ending|room_table|send_room|receive_room|tombstones|page_set|profile|engines_match|transfer_plan|transport_choice|messages|peer_messages|hello)\.(h|cc)$/
}

function impure_include(name) {
  return name ~ /^(grpc|grpcpp|ucp|uct|ucs)\// || name ~ /\.grpc\.pb\.h$/ ||
         name ~ /^(thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|chrono|pthread\.h|unistd\.h|sys\/.*)$/ ||
         name ~ /^absl\/(synchronization\/.*|time\/clock\.h)$/ || name == "libs/common/clock.h"
}

function is_grpc(name) { return name ~ /^(grpc|grpcpp)\// || name ~ /\.grpc\.pb\.h$/ }

# "" or why `file` may not include `name`.
function wrong_direction(file, name,    own) {
  if (file !~ /^(tests|bench)\// && name ~ /^(tests|bench)\//) return "nothing includes tests/ or bench/"
  if (file ~ /^kernels\// && name ~ /^(libs|services|pageferry)\//) return "kernels/ sees the CUDA runtime and itself"
  if (file ~ /^libs\// && name ~ /^(services|kernels)\//) return "libs/ does not know services/ or kernels/"
  if (file ~ /^libs\/common\// && name ~ /^libs\/transport\//) return "libs/common/ does not know libs/transport/"
  if (file ~ /^libs\/transport\// && file !~ /\/grpc_bytes[^\/]*$/ &&
      (name ~ /^pageferry\// || is_grpc(name) || name ~ /^libs\/common\/grpc_/))
    return "libs/transport/ uses neither protos nor gRPC (only grpc_bytes* may)"
  if (file ~ /^services\//) {
    own = file
    sub(/^services\//, "", own)
    sub(/\/.*/, "", own)
    if (name ~ /^services\// && index(name, "services/" own "/") != 1) return "services share protos, not headers"
    if (own == "bootstrap" && (name ~ /^libs\/transport\// || name ~ /^(ucp|uct|ucs)\//)) return "the bootstrap service moves no pages: no libs/transport/, no UCX"
  }
  if (name ~ /^tools\// && file !~ /^(tools|tests|bench)\//) return "nothing but tests includes tools/"
  if (file ~ /^tools\// && name ~ /^(services|kernels|libs\/transport)\//) return "tools/ speaks to services through the protos"
  if (name ~ /^(ucp|uct|ucs)\// && file !~ /^libs\/transport\/ucx_/ && file !~ /^(tests|bench)\//) return "UCX is for libs/transport/ucx_*"
  return ""
}

FNR == 1 {
  file = FILENAME
  files[++count] = file
  in_comment = 0
}

/^[ \t]*#[ \t]*include[ \t]*[<"]/ {
  name = $0
  sub(/^[^<"]*[<"]/, "", name)
  sub(/[>"].*/, "", name)
  includes[file] = includes[file] name "\n"
  line_of[file, name] = FNR
  why = wrong_direction(file, name)
  if (why != "") report(file ":" FNR, "includes " name ": " why)
  if (is_grpc(name)) direct_grpc[file] = 1
  if (is_pure(file) && impure_include(name)) report(file ":" FNR, "pure file includes " name ": pass the time and the answers in as arguments")
  next
}

# The rest looks at code without strings and comments.
{
  if ($0 ~ /\/\/ layers: ./) next  # An exception, with its reason behind the colon.
  code = $0
  gsub(/\\["\\]/, "", code)
  gsub(/"[^"]*"/, "\"\"", code)
  if (in_comment) {
    if (code !~ /\*\//) next
    sub(/^.*\*\//, "", code)
    in_comment = 0
  }
  sub(/\/\/.*/, "", code)
  while (match(code, /\/\*/)) {
    rest = substr(code, RSTART)
    if (match(rest, /\*\//)) {
      code = substr(code, 1, length(code) - length(rest)) substr(rest, RSTART + 2)
    } else {
      sub(/\/\*.*/, "", code)
      in_comment = 1
    }
  }
  if (file ~ /^(tests|bench)\//) {
    if (file ~ /^tests\/(unit|fakes)\// && code ~ /(sleep_for|sleep_until|SleepFor)[ ]*\(/)
      report(file ":" FNR, "sleeps: unit tests run on the fake clock")
    next
  }

  timely = file ~ /^libs\/common\/(clock|scheduler|backoff)\.cc$/ || file == "libs/common/steady_condition.h"
  if (!timely) {
    if (code ~ /(_clock::now|absl::Now|GetCurrentTimeNanos|clock_gettime|gettimeofday)[ ]*\(/ || code ~ /(^|[^A-Za-z0-9_.>:])(std::)?time\((nullptr|NULL|0|&)/)
      report(file ":" FNR, "asks the time: take a Clock (libs/common/clock.h)")
    if (code ~ /(sleep_for|sleep_until|SleepFor|usleep|nanosleep)[ ]*\(/ || code ~ /(^|[^A-Za-z0-9_])sleep\(/)
      report(file ":" FNR, "sleeps: use a Scheduler (libs/common/scheduler.h)")
    if (code ~ /random_device|absl::BitGen|(^|[^A-Za-z0-9_])s?rand\(/)
      report(file ":" FNR, "random seed: take it from Backoff or as an argument")
    if (code ~ /grpc::Alarm|timerfd_create/)
      report(file ":" FNR, "timer: use a Scheduler (libs/common/scheduler.h)")
  }
  if (code ~ /(^|[^A-Za-z0-9_])(ABSL_RAW_CHECK|ABSL_ASSERT|ABSL_HARDENING_ASSERT|D?CHECK(_[A-Z]+)?|assert|GPR_ASSERT)[ ]*\(/)
    report(file ":" FNR, "asserts: what a peer, flag or file can cause is an absl::Status; what cannot happen, the types should rule out")
  if (code ~ /(^|[^A-Za-z0-9_.>])(std::)?(abort|terminate|_exit|quick_exit)[ ]*\(/ && code !~ /(abort|terminate)\([ ]*\)[ ]*(const|override)/)
    report(file ":" FNR, "ends the process: return an absl::Status")
  if (code ~ /(^|[^A-Za-z0-9_])throw([^A-Za-z0-9_]|$)/)
    report(file ":" FNR, "throws: return an absl::Status")
  if (code ~ /(^|[^A-Za-z0-9_])volatile([^A-Za-z0-9_]|$)/)
    report(file ":" FNR, "volatile: use std::atomic with a named order, or a lock")
  if (code ~ /grpc::Status([^A-Za-z0-9_]|$)/ && !(file in status_line)) status_line[file] = FNR
}

# Everything `file` includes of ours, through headers; marks reach[file, name].
function follow(file, from,    names, n, i) {
  n = split(includes[from], names, "\n")
  for (i = 1; i < n; ++i) {
    if ((file, names[i]) in reach) continue
    reach[file, names[i]] = from
    if (names[i] in includes) follow(file, names[i])
  }
}

END {
  for (i = 1; i <= count; ++i) follow(files[i], files[i])
  for (key in reach) {
    split(key, part, SUBSEP)
    if (is_grpc(part[2])) with_grpc[part[1]] = 1
    if (is_pure(part[1]) && impure_include(part[2]) && reach[key] != part[1])
      report(part[1] ":1", "pure file reaches " part[2] " through " reach[key])
  }
  for (i = 1; i <= count; ++i) {
    file = files[i]
    if ((file in status_line) && !(file in with_grpc) && file !~ /^libs\/common\/grpc_status\./)
      report(file ":" status_line[file], "grpc::Status outside the gRPC edge: use absl::Status")
    if (file ~ /\.cc$/ && (file in with_grpc)) {
      if (file ~ /^tests\/|^bench\//) ++test_edges; else ++edges
    }
  }
  if (edges > 35) {
    for (i = 1; i <= count; ++i) if (files[i] ~ /^(libs|services|tools).*\.cc$/ && (files[i] in with_grpc)) print "  " files[i]
    report("libs, services, tools", edges " sources include gRPC, at most 35: each costs 6 to 30 s in every lane")
  }
  if (!bad) printf "layers: %d files of C++; gRPC in %d sources (at most 35) and %d tests\n", count, edges, test_edges
  exit bad
}
