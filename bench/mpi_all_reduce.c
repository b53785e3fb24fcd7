// SPDX-License-Identifier: Apache-2.0
// One rank of an in-place float32 sum with MPI_Allreduce, for comparisons.
//   mpirun -np N mpi_all_reduce FOLDER
// Each rank reads commands "BYTES CALLS\n" from the fifo FOLDER/RANK (so that it sleeps between commands, where MPI
// itself would spin) until end-of-file. Per command: fill, barrier, CALLS calls timed together, check of every element.
// Rank 0 then prints "SECONDS WRONG": the slowest rank's time, the sum of all ranks' wrong elements.
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kPeriod = 61 };

static float contribution(int rank, size_t index) {
  return ldexpf((float)((index + 7 * (size_t)rank) % kPeriod + 1), -118);
}

static long wrong_elements(const float* buffer, size_t count, int ranks, int calls) {
  float expected[kPeriod];
  for (size_t i = 0; i < kPeriod; ++i) {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += contribution(rank, i);
    expected[i] = (float)(sum * pow(ranks, calls - 1));
  }
  const int exact = (ranks & (ranks - 1)) == 0;
  const float tolerance = exact ? 0.0F : 1.2e-7F * (float)(ranks + calls);
  long wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const float value = expected[i % kPeriod];
    if (!(fabsf(buffer[i] - value) <= tolerance * value)) ++wrong;
  }
  return wrong;
}

static void run(size_t count, int calls, int rank, int ranks) {
  float* buffer = NULL;
  if (posix_memalign((void**)&buffer, 64, (count > 0 ? count : 1) * sizeof(float)) != 0) MPI_Abort(MPI_COMM_WORLD, 1);
  for (size_t i = 0; i < count; ++i) buffer[i] = contribution(rank, i);
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int call = 0; call < calls; ++call) {
    MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  double seconds = MPI_Wtime() - begin;
  long wrong = wrong_elements(buffer, count, ranks, calls);
  double slowest = 0;
  long all_wrong = 0;
  MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("%.9f %ld\n", slowest, all_wrong);
    fflush(stdout);
  }
  free(buffer);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  char path[4096];
  snprintf(path, sizeof path, "%s/%d", argc > 1 ? argv[1] : ".", rank);
  FILE* commands = fopen(path, "r");
  if (commands == NULL) {
    perror(path);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  size_t bytes = 0;
  int calls = 0;
  while (fscanf(commands, "%zu %d", &bytes, &calls) == 2) run(bytes / sizeof(float), calls, rank, ranks);
  fclose(commands);
  MPI_Finalize();
  return 0;
}
