#!/bin/bash
# Stops what slurm_up.sh started; waits until it is gone.
D=${SLURM_DIR:?}; export SLURM_CONF=$D/slurm.conf
scancel --user="$(id -un)" 2>/dev/null; 
for _ in $(seq 50); do [ -z "$(squeue -h 2>/dev/null)" ] && break; sleep 0.2; done
pids=$(cat "$D"/slurmd.*.pid "$D/slurmctld.pid" "$D/munge/munged.pid" 2>/dev/null)
for p in $pids; do kill "$p" 2>/dev/null; done
for _ in $(seq 100); do alive=; for p in $pids; do kill -0 "$p" 2>/dev/null && alive=1; done; [ -z "$alive" ] && exit 0; sleep 0.1; done
exit 1
