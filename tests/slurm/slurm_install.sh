#!/bin/bash
# Installs Slurm from Debian's packages where it is missing. Its daemons start without systemd, as root: see slurm_up.sh.
set -euo pipefail
if [ "$(id -u)" != 0 ]; then
  echo "slurm_install.sh: the tests under Slurm start its daemons as root, and this is $(id -un): run them as root, in a container for one" >&2
  exit 1
fi
if command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null && command -v munged >/dev/null; then
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "slurm_install.sh: Slurm is not installed, and without apt-get it is not installed here: it takes slurmctld, slurmd, sbatch and munged" >&2
  exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends munge slurmctld slurmd slurm-client >/dev/null
