// SPDX-License-Identifier: Apache-2.0
// A rank that calls MPI_Allreduce until a fault happens to it, like reliability_rank.py.
//   mpirun -np N mpi_faults FOLDER FAULT VICTIM HOW
// It appends events to FOLDER/rank-R, a JSON object per line, with the monotonic clock. The rank VICTIM causes FAULT
// once FOLDER/fault exists. HOW: "abort" leaves errors to MPI's default, which ends the job; "return" lets calls return
// them, and if MPI supports it makes a communicator of the surviving ranks.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(OPEN_MPI) && OPEN_MPI
#include <mpi-ext.h>
#endif

enum { kCount = 25000, kMore = 10, kStartSteps = 20 };

static float buffer[kCount + kMore];
static FILE* events;
static int rank;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void tell(const char* event, const char* text) {
  fprintf(events, "{\"event\": \"%s\", \"at\": %.6f, \"pid\": %d, \"text\": \"%s\"}\n", event, now(), (int)getpid(), text);
  fflush(events);
}

static int step(MPI_Comm comm, float expected) {
  for (int i = 0; i < kCount; ++i) buffer[i] = (float)rank;
  const int code = MPI_Allreduce(MPI_IN_PLACE, buffer, kCount, MPI_FLOAT, MPI_SUM, comm);
  if (code != MPI_SUCCESS) return code;
  for (int i = 0; expected >= 0 && i < kCount; ++i) {
    if (buffer[i] != expected) {
      tell("wrong", "another sum than expected");
      _exit(0);
    }
  }
  return MPI_SUCCESS;
}

static void make_again(void) {
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
  MPI_Comm left;
  int size = 0;
  MPIX_Comm_revoke(MPI_COMM_WORLD);
  if (MPIX_Comm_shrink(MPI_COMM_WORLD, &left) == MPI_SUCCESS && MPI_Comm_size(left, &size) == MPI_SUCCESS &&
      step(left, -1) == MPI_SUCCESS) {
    tell("recovered", "");
  } else {
    tell("not recovered", "MPIX_Comm_shrink");
  }
#endif
}

static void fail(int code) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  for (char* letter = text; *letter; ++letter) {
    if (*letter == '"' || *letter == '\\' || *letter < ' ') *letter = ' ';
  }
  tell("error", text);
  make_again();
  tell("done", "");
  _exit(0);
}

static void misbehave(const char* fault) {
  static int has_begun = 0;
  if (!has_begun) tell("misbehaves", "");
  has_begun = 1;
  int code = MPI_SUCCESS;
  if (strcmp(fault, "exit") == 0) exit(0);
  if (strcmp(fault, "never") == 0) sleep(3600);
  if (strcmp(fault, "slow") == 0) sleep(1);
  if (strcmp(fault, "shape") == 0) {
    code = MPI_Allreduce(MPI_IN_PLACE, buffer, kCount + kMore, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  if (strcmp(fault, "operation") == 0) code = MPI_Bcast(buffer, kCount, MPI_FLOAT, 0, MPI_COMM_WORLD);
  if (code != MPI_SUCCESS) fail(code);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 5) MPI_Abort(MPI_COMM_WORLD, 2);
  char path[4096];
  char flag[4096];
  snprintf(path, sizeof path, "%s/rank-%d", argv[1], rank);
  snprintf(flag, sizeof flag, "%s/fault", argv[1]);
  events = fopen(path, "a");
  if (events == NULL) MPI_Abort(MPI_COMM_WORLD, 2);
  if (strcmp(argv[4], "return") == 0) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int is_victim = rank == atoi(argv[3]);
  const float expected = (float)(ranks * (ranks - 1) / 2);
  double told = 0;
  for (long steps = 1;; ++steps) {
    const int code = step(MPI_COMM_WORLD, expected);
    if (code != MPI_SUCCESS) fail(code);
    if (steps == kStartSteps) tell("running", "");
    if (now() > told + 1) {
      told = now();
      tell("step", "");
    }
    if (is_victim && access(flag, F_OK) == 0) misbehave(argv[2]);
  }
}
