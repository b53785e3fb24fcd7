// SPDX-License-Identifier: Apache-2.0

// ThreadSanitizer asks a program for this by name, which must be visible to it. The count of references that
// std::exception_ptr keeps is atomic, but libstdc++ itself is not instrumented: the thread that lets go last, and deletes
// the exception, seems to race with those that read it before.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
