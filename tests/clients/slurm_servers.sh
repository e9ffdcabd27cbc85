# shellcheck shell=bash
# munged, slurmctld and a slurmd on each host of hosts.sh; returns when all hosts are idle.
state=$PWD/slurm
mkdir -p "$state/state"
touch "$state"/gpu{0..3}
dd if=/dev/urandom of="$state/key" bs=1024 count=1 status=none
chmod 400 "$state/key"
munged --force --key-file="$state/key" --socket="$state/munge.socket" --pid-file="$state/munged.pid" \
  --log-file="$state/munged.log" --seed-file="$state/munged.seed"
cat > "$state/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=head(10.77.0.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$state/munge.socket
StateSaveLocation=$state/state
SlurmdSpoolDir=$state/%h
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd-%h.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd-%h.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
GresTypes=gpu
ReturnToService=2
CONF
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' > "$state/cgroup.conf"
printf 'Name=gpu File=%s\n' "$state/gpu[0-3]" > "$state/gres.conf"
number=0
for host in $HOSTS; do
  number=$((number + 1))
  echo "NodeName=$host NodeAddr=10.77.0.$number CPUs=4 Gres=gpu:4 State=UNKNOWN" >> "$state/slurm.conf"
done
echo "PartitionName=all Nodes=ALL Default=YES State=UP" >> "$state/slurm.conf"
export SLURM_CONF=$state/slurm.conf
slurmctld
for host in $HOSTS; do
  mkdir -p "$state/$host"
  /run/on "$host" slurmd
done
wanted=$(wc -w <<< "$HOSTS")
for _ in $(seq 100); do
  if [[ $(sinfo --noheader --states=idle --format=%D) == "$wanted" ]]; then break; fi
  sleep 0.2
done
