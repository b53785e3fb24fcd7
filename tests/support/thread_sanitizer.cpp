// SPDX-License-Identifier: Apache-2.0

// ThreadSanitizer looks this function up by name, so it must be visible. The reference count of std::exception_ptr is
// atomic, but libstdc++ itself is not instrumented: the thread that releases the last reference, and deletes the
// exception, seems to race with those that read it before.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
