# shellcheck shell=bash
# Hosts of the variable HOSTS as network namespaces on one bridge; /run/on HOST COMMAND runs there.
set -euo pipefail
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock
hostname head
ip link set lo up
ip link add bridge type bridge
ip addr add 10.77.0.254/24 dev bridge
ip link set bridge up
printf '127.0.0.1 localhost\n10.77.0.254 head\n' > /run/hosts
number=0
for host in $HOSTS; do
  number=$((number + 1))
  ip netns add "$host"
  ip link add "port$number" type veth peer name eth0 netns "$host"
  ip link set "port$number" master bridge up
  ip -n "$host" addr add "10.77.0.$number/24" dev eth0
  ip -n "$host" link set eth0 up
  ip -n "$host" link set lo up
  printf '10.77.0.%s %s\n' "$number" "$host" >> /run/hosts
done
mount --bind /run/hosts /etc/hosts
cat > /run/on <<'ON'
#!/bin/bash
# on HOST COMMAND: as mpirun calls ssh, the words of the command are one line for the shell of the host.
host=$1
shift
exec ip netns exec "$host" unshare --uts bash -c "hostname $host; $*"
ON
chmod +x /run/on
