#!/usr/bin/env bash
# Starts a Kubernetes cluster on this machine: start.sh PROGRAM DIRECTORY NODES IMAGE-ARCHIVE... in namespaces of its own
# (unshare --mount --pid --fork --kill-child --net --mount-proc --propagation private). Each node is a network namespace with a
# containerd and a kubelet. The script prints `ready` once all nodes are ready, and ends the cluster at the end of its input.
set -euo pipefail
program=$1 directory=$2 count=$3
shift 3
api=10.0.0.1
groups="/sys/fs/cgroup"
controllers="cpu cpuacct cpuset memory pids devices freezer blkio systemd"
# Of this cluster only: another checkout may run one on the same machine.
own="consort-kubernetes-$(echo "$directory" | cksum | cut -d' ' -f1)"

log() { echo "$(date +%T) $*" >&2; }

# Starts a program with its output in a file of the directory.
start() {
    local name=$1
    shift
    "$@" > "$directory/log/$name.log" 2>&1 < /dev/null &
}

# Runs a program again and again, and writes its process into a file.
supervise() {
    local file=$1
    shift
    while true; do
        "$@" &
        echo $! > "$file"
        wait $! || log "$1 $2 has ended"
    done
}

# Waits for a command to succeed.
await() {
    local what=$1 n=0
    shift
    until "$@" > /dev/null 2>&1; do
        n=$((n + 1))
        if [ $n -gt 600 ]; then
            log "not within 60 s: $what"
            tail -n 5 "$directory"/log/*.log >&2
            exit 1
        fi
        sleep 0.1
    done
}

admin() { "$program" kubectl --kubeconfig "$directory/keys/admin.kubeconfig" "$@"; }

leave_groups() {
    local controller
    for controller in $controllers unified; do
        [ -d "$groups/$controller/$own" ] && find "$groups/$controller/$own" -depth -type d -exec rmdir {} + 2> /dev/null
    done
    true
}

enter_groups() {
    local controller
    for controller in $controllers; do
        mkdir -p "$groups/$controller/$own/$1"
    done
    for file in cpuset.cpus cpuset.mems; do
        cat "$groups/cpuset/$file" > "$groups/cpuset/$own/$file"
        cat "$groups/cpuset/$file" > "$groups/cpuset/$own/$1/$file"
    done
}

network() {
    ip link set lo up
    ip link add br0 type bridge
    ip address add $api/24 dev br0
    ip link set br0 up
    echo 1 > /proc/sys/net/ipv4/ip_forward
    local n other
    for n in $(seq "$count"); do
        ip netns add "node$n"
        ip link add "veth$n" type veth peer name eth0 netns "node$n"
        ip link set "veth$n" master br0 up
        ip -n "node$n" link set lo up
        ip -n "node$n" address add "10.0.0.1$n/24" dev eth0
        ip -n "node$n" link set eth0 up
        ip -n "node$n" route add default via $api
        nsenter --net="/run/netns/node$n" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
        ip route add "10.244.$n.0/24" via "10.0.0.1$n"
    done
    for n in $(seq "$count"); do
        for other in $(seq "$count"); do
            [ "$n" = "$other" ] || ip -n "node$n" route add "10.244.$other.0/24" via "10.0.0.1$other"
        done
    done
}

# Starts it again when it ends: tests kill it.
api_server() {
    local keys="$directory/keys"
    supervise "$directory/kube-apiserver.pid" \
        "$program" kube-apiserver --etcd-servers="http://$api:2379" --advertise-address=$api \
        --secure-port=6443 --tls-cert-file="$keys/apiserver.crt" --tls-private-key-file="$keys/apiserver.key" \
        --client-ca-file="$keys/ca.crt" --kubelet-client-certificate="$keys/admin.crt" \
        --kubelet-client-key="$keys/admin.key" --kubelet-preferred-address-types=InternalIP \
        --service-account-key-file="$keys/accounts.pub" --service-account-signing-key-file="$keys/accounts.key" \
        --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=10.96.0.0/16 \
        --service-account-extend-token-expiration=false \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction
}

control_plane() {
    local keys="$directory/keys"
    start etcd "$program" etcd "http://$api:2379" "$directory/etcd"
    start kube-apiserver api_server
    await "API server" admin get --raw /readyz
    start kube-controller-manager "$program" kube-controller-manager --kubeconfig="$keys/kube-controller-manager.kubeconfig" \
        --service-account-private-key-file="$keys/accounts.key" --root-ca-file="$keys/ca.crt" \
        --use-service-account-credentials --leader-elect=false \
        --cluster-signing-cert-file="$keys/ca.crt" --cluster-signing-key-file="$keys/ca.key"
    start kube-scheduler "$program" kube-scheduler --kubeconfig="$keys/kube-scheduler.kubeconfig" --leader-elect=false
    cat > "$directory/Corefile" <<END
.:53 {
    bind $api
    errors
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $keys/admin.kubeconfig
        ttl 1
    }
}
END
    start coredns "$program" coredns -conf "$directory/Corefile"
}

# Runs in the node's namespaces. Paths of kubelets are the same on each node, so each node has mounts of its own.
node() {
    local n=$1 name="node$1" own_directory="$directory/node$1"
    mkdir -p "$own_directory"/{kubelet,log,cni,containerd} /run/"$name"
    mkdir -p /var/lib/kubelet /var/log
    mount --bind "$own_directory/kubelet" /var/lib/kubelet
    mount --bind "$own_directory/log" /var/log
    mount --make-rshared /
    cat > "$own_directory/cni/pods.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
 "ipam": {"type": "host-local", "dataDir": "$own_directory/addresses", "ranges": [[{"subnet": "10.244.$n.0/24"}]],
          "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
    cat > "$own_directory/containerd.toml" <<END
version = 2
root = "$own_directory/containerd"
state = "/run/$name/containerd"
[grpc]
address = "/run/$name/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
# Without CAP_SYS_RESOURCE nothing may lower oom_score_adj.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$own_directory/cni"
END
    cat > "$own_directory/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.0.0.1$n
authentication:
  x509:
    clientCAFile: $directory/keys/ca.crt
authorization:
  mode: Webhook
cgroupDriver: cgroupfs
cgroupRoot: /$own/$name
failCgroupV1: false
enforceNodeAllocatable: []
clusterDNS: [$api]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/$name/containerd.sock
resolvConf: ""
failSwapOn: false
localStorageCapacityIsolation: false
evictionHard:
  memory.available: 100Mi
imageGCHighThresholdPercent: 100
END
    containerd --config "$own_directory/containerd.toml" > "$directory/log/$name-containerd.log" 2>&1 < /dev/null &
    await "containerd of $name" ctr --address "/run/$name/containerd.sock" version
    local archive
    for archive in "${@:2}"; do
        ctr --address "/run/$name/containerd.sock" --namespace k8s.io images import "$archive" > /dev/null
    done
    "$program" kube-proxy --kubeconfig="$directory/keys/kube-proxy.kubeconfig" --hostname-override="$name" \
        --proxy-mode=nftables --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
        --conntrack-tcp-timeout-close-wait=0 > "$directory/log/$name-kube-proxy.log" 2>&1 < /dev/null &
    exec "$program" kubelet --kubeconfig="$directory/keys/$name.kubeconfig" --config="$own_directory/kubelet.yaml" \
        --hostname-override="$name" --node-ip="10.0.0.1$n" --node-labels="topology.kubernetes.io/zone=zone$n"
}

is_ready() { [ "$(admin get nodes --no-headers | grep -c ' Ready ')" = "$count" ]; }

if [ "${NODE:-}" ]; then
    node "$NODE" "$@"
fi

mount -t tmpfs tmpfs /run
mkdir -p "$directory"/{log,keys}
network
"$program" keys "$directory/keys" $api $(seq -f 'node%g' "$count")
control_plane
leave_groups
for n in $(seq "$count"); do
    enter_groups "node$n"
    NODE=$n start "node$n-kubelet" nsenter --net="/run/netns/node$n" unshare --mount --propagation private \
        "$BASH" "$0" "$program" "$directory" "$count" "$@"
done
await "nodes" is_ready
echo ready
cat > /dev/null
