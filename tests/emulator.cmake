# SPDX-License-Identifier: Apache-2.0
# What qemu-user cannot run, and why; as patterns of GoogleTest.
set(cannot_run
    Sandbox.*  # it refuses seccomp's filters
    RedisJobStore.AForkedProcessIsToldToMakeItsOwn  # QEMU 7.2 ends a child of several threads that makes threads
    RedisJobStore.AJobWhoseMembersHaveDiedBeginsAnew  # likewise
    SessionServer.FiftySessionsAtOnce  # so many translated robots cannot keep their deadlines on two processors
)
list(JOIN cannot_run ":" cannot_run)
set(test_filter TEST_FILTER -${cannot_run})
