#!/bin/bash
# Starts a Slurm of one or two nodes on this machine, as root: SLURM_DIR=/an/empty/folder SLURM_NODES=2 slurm_up.sh.
# Then: export SLURM_CONF=$SLURM_DIR/slurm.conf. Two at a time have ports and numbers of jobs of their own with SLURM_PORT.
set -euo pipefail
D=${SLURM_DIR:?}; N=${SLURM_NODES:-1}; PORT=${SLURM_PORT:-16817}
bash "$(dirname "$0")/slurm_install.sh"
mkdir -p "$D/state"
export SLURM_CONF=$D/slurm.conf
{ cat <<EOF
ClusterName=ci
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
ReturnToService=2
KillWait=30
SlurmctldPort=$PORT
FirstJobId=$PORT
StateSaveLocation=$D/state
SlurmctldPidFile=$D/slurmctld.pid
SlurmctldLogFile=$D/slurmctld.log
SlurmdPidFile=$D/slurmd.%n.pid
SlurmdLogFile=$D/slurmd.%n.log
SlurmdSpoolDir=$D/spool.%n
EOF
for i in $(seq "$N"); do echo "NodeName=n$i NodeHostname=localhost NodeAddr=127.0.0.1 Port=$(( PORT + i )) CPUs=2 State=UNKNOWN"; done
echo "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
} > "$SLURM_CONF"
# munge with a key and a socket of its own
chmod 755 "$D"
dd if=/dev/urandom of="$D/munge.key" bs=1024 count=1 status=none; chmod 600 "$D/munge.key"
mkdir -p "$D/munge"; chmod 755 "$D/munge"
munged --key-file="$D/munge.key" --socket="$D/munge.socket" --pid-file="$D/munge/munged.pid" --log-file="$D/munge/munged.log" --seed-file="$D/munge/munged.seed"
slurmctld
for i in $(seq "$N"); do mkdir -p "$D/spool.n$i"; slurmd -N "n$i"; done
for _ in $(seq 150); do
  [ "$(sinfo -h -N -o %T 2>/dev/null | grep -c '^idle$')" = "$N" ] && exit 0
  sleep 0.2
done
echo "slurm not idle after 30 s" >&2; sinfo >&2 || true; tail -n 20 "$D"/*.log >&2; exit 1
