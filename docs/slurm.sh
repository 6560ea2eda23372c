#!/bin/bash
# CrOC on a SLURM cluster: two nodes of eight GPUs, one process per GPU. When the time is up or the
# job is preempted, the run saves and asks to be queued again (exit code 75); so does one that
# is signaled before its first step (138 and 143).
#   sbatch docs/slurm.sh coco-vits16 --data.root /data/coco --run.folder /scratch/runs/coco
#SBATCH --job-name=croc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

srun --kill-on-bad-exit=0 croc pretrain "$@" --resume auto
code=$?
case "$code" in
    75 | 138 | 143) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$code"
