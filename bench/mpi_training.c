// SPDX-License-Identifier: Apache-2.0
// One rank of the training of reliability_training.py, with a checkpoint after each step.
//   mpirun -np N mpi_training FOLDER
// It appends what it does to FOLDER/rank-R, a JSON object per line, with the monotonic clock.
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { kCount = 25000, kPauseMicroseconds = 20000 };

typedef struct {
  int done;
  float weights[kCount];
} State;

static State state;
static float gradient[kCount];

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void save(const char* path, const char* unfinished) {
  FILE* file = fopen(unfinished, "wb");
  if (file == NULL || fwrite(&state, sizeof state, 1, file) != 1) MPI_Abort(MPI_COMM_WORLD, 2);
  fclose(file);
  if (rename(unfinished, path) != 0) MPI_Abort(MPI_COMM_WORLD, 2);
}

static int is_right(void) {
  for (int i = 0; i < kCount; ++i) {
    if (fabsf(state.weights[i] + (float)state.done) > 1e-5F * (float)state.done) return 0;
  }
  return 1;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  char path[4096];
  char unfinished[4096];
  char record[4096];
  snprintf(path, sizeof path, "%s/checkpoint", argv[1]);
  snprintf(unfinished, sizeof unfinished, "%s/checkpoint.new", argv[1]);
  snprintf(record, sizeof record, "%s/rank-%d", argv[1], rank);
  FILE* events = fopen(record, "a");
  if (events == NULL) MPI_Abort(MPI_COMM_WORLD, 2);
  FILE* saved = fopen(path, "rb");
  if (saved != NULL) {
    if (fread(&state, sizeof state, 1, saved) != 1) MPI_Abort(MPI_COMM_WORLD, 2);
    fclose(saved);
  }
  for (;;) {
    for (int i = 0; i < kCount; ++i) gradient[i] = 1.0F;
    MPI_Allreduce(MPI_IN_PLACE, gradient, kCount, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < kCount; ++i) state.weights[i] -= gradient[i] / (float)ranks;
    ++state.done;
    if (rank == 0) save(path, unfinished);
    fprintf(events, "{\"event\": \"%s\", \"at\": %.6f, \"pid\": %d, \"step\": %d, \"ranks\": %d, \"text\": \"\"}\n",
            is_right() ? "step" : "wrong", now(), (int)getpid(), state.done, ranks);
    fflush(events);
    usleep(kPauseMicroseconds);
  }
}
