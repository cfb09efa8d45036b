# What lies between the core and gRPC: loop-confined, driven here by a loop without a thread.
pageferry_cc_library(NAME fake_loop HDRS fake_loop.h DEPS absl::any_invocable
                     pageferry::agent_sessions pageferry::fake_clock)
pageferry_cc_test(NAME peer_session_test SRCS peer_session_test.cc DEPS pageferry::fake_loop
                  pageferry::status_matchers LABELS unit)
pageferry_cc_test(NAME peer_dialler_test SRCS peer_dialler_test.cc DEPS absl::synchronization
                  pageferry::fake_loop pageferry::fake_ports pageferry::metrics
                  pageferry::status_matchers LABELS unit)
pageferry_cc_test(NAME agent_bootstrap_test SRCS agent_bootstrap_test.cc DEPS
                  pageferry::agent_bootstrap pageferry::fake_loop pageferry::status_matchers
                  LABELS unit)
