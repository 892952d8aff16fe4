#!/usr/bin/env bash
# The whole command. RANKS=2 (under `env:` in job.yaml) trains with two processes: torchrun, gloo.
set -euo pipefail
export OMP_NUM_THREADS=1                 # one thread a rank: the same sums in the same order
if [ "${RANKS:-1}" -eq 1 ]; then
    exec python jobs/chars/train.py "$@"
fi
# ranks that torchrun starts again must not meet the addresses of those before: github.com/pytorch/pytorch/issues/135712
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec torchrun --standalone --nproc-per-node="$RANKS" --max-restarts=2 jobs/chars/train.py "$@"
