// What ThreadSanitizer may leave out in every program (tsan lane only).
//
// Debian's gRPC is not instrumented. When a call's last event is a cancellation, it runs OnDone on
// a thread of its own, after a count that both threads took down with acquire and release: the side
// in the library is not seen, so the end of the call, whose code is in gRPC's headers and thus in
// our objects, seems to race with the completion before it. Only the destructors of gRPC's own
// classes are left out; what our OnDone does is checked. But for one: the health watch ends by
// OnCancel, which the library calls itself, and so before its OnDone TSan sees no order at all.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::internal::CallOpSet*::~CallOpSet\n"
         "race:::~ServerCallback*Impl\n"
         "race:~ServerUnaryReactor\n"
         "race:~ServerBidiReactor\n"
         "race:~ServerWriteReactor\n"
         "race:pageferry::*namespace*::WatchReactor::OnDone\n";
}
