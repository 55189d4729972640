#!/usr/bin/env bash
# One machine as a SLURM cluster with two slots, without systemd: slurm.sh start FOLDER, stop FOLDER.
# Needs root and Debian's slurm-wlm and munge. All of its files are in FOLDER, also those that tell
# SLURM's commands where it is: export SLURM_CONF=FOLDER/slurm.conf.
set -euo pipefail
action=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)

# Ends the daemon whose number is in a file, and waits until it has ended.
end() {
  [ -s "$1" ] || return 0
  local pid
  pid=$(cat "$1")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 200); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
  rm -f "$1"
}

stop() {
  if [ -s "$folder/slurmctld.pid" ]; then
    SLURM_CONF="$folder/slurm.conf" timeout 20 scancel --user=root || true
  fi
  end "$folder/slurmd.pid"
  end "$folder/slurmctld.pid"
  end "$folder/munged.pid"
}

# A port from $1 on where nothing listens.
free_port() {
  local port=$1
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}

# Two slots whatever the machine has: what a job asks for is counted and not enforced.
configure() {
  cat > "$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
# A job that is queued again starts when its old credential has expired, by default after two minutes.
AuthInfo=socket=$folder/munge.socket,cred_expire=10
CryptoType=crypto/munge
# Below those that Linux gives to any socket.
SlurmctldPort=$(free_port $((20000 + $$ % 6000)))
SlurmdPort=$(free_port $((26000 + $$ % 6000)))
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
# Seconds: between SIGTERM and SIGKILL, and between two looks for jobs to start.
KillWait=20
MinJobAge=300
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,nohold_on_prolog_fail
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=30 State=UP
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
CONF
}

start() {
  mkdir -p "$folder/state" "$folder/spool"
  configure
  head -c 1024 /dev/urandom > "$folder/munge.key"
  chmod 400 "$folder/munge.key"
  # munged refuses folders that others may write, such as /tmp.
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
  export SLURM_CONF="$folder/slurm.conf"
  slurmctld -f "$SLURM_CONF"
  slurmd -f "$SLURM_CONF"
  for _ in $(seq 1800); do
    if [ "$(sinfo --noheader --partition=low --format=%t 2>/dev/null)" = idle ]; then
      return 0
    fi
    sleep 0.1
  done
  echo "error: SLURM does not start; see $folder/*.log" >&2
  stop
  exit 1
}

case $action in
  start) start ;;
  stop) stop ;;
  *) echo "usage: slurm.sh start|stop FOLDER" >&2; exit 2 ;;
esac
