#!/usr/bin/env bash
# The whole command. orch runs the frozen copy runs/digits/job.sh with the repository as current directory.
set -euo pipefail
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1   # one thread: the same sums in the same order
exec python jobs/digits/train.py "$@"
