"""What the cluster consists of: its nodes, the files of its services, and how a host is set up."""

NODES = ("n1", "n2", "n3")
CORES = 4
GPUS = 4

# Seconds. Small, so that a test need not wait long for what takes minutes on a real cluster.
NODE_TIMEOUT = 10
KILL_WAIT = 5
GRACE = 60

SLURM_CONF = f"""\
ClusterName=trial
SlurmctldHost=login(10.77.0.1)
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/cluster/slurmctld
SlurmctldPidFile=/run/cluster/slurmctld.pid
SlurmdPidFile=/run/cluster/local/slurmd.pid
SlurmdSpoolDir=/run/cluster/local/slurmd
SlurmctldLogFile=/run/cluster/slurmctld.log
SlurmdLogFile=/run/cluster/slurmd.%n.log
SlurmdDebug=verbose
ReturnToService=2
SlurmdTimeout={NODE_TIMEOUT}
SlurmctldTimeout=10
BatchStartTimeout=30
InactiveLimit=0
KillWait={KILL_WAIT}
MinJobAge=300
# The machine has fewer cores than the nodes claim, and no separate cgroups.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory,CR_LLN
DefMemPerCPU=1000
SchedulerParameters=sched_interval=2,sched_min_interval=100000,bf_interval=2
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# A job that takes more memory than it asked for is killed, as by cgroups elsewhere.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=10.77.0.1
AccountingStorageEnforce=associations,limits
GresTypes=gpu
NodeName=n1 NodeAddr=10.77.0.11 CPUs={CORES} RealMemory=16000 Gres=gpu:{GPUS}
NodeName=n2 NodeAddr=10.77.0.12 CPUs={CORES} RealMemory=16000 Gres=gpu:{GPUS}
NodeName=n3 NodeAddr=10.77.0.13 CPUs={CORES} RealMemory=16000 Gres=gpu:{GPUS}
PartitionName=cpu Nodes=ALL Default=YES MaxTime=7-0 PriorityTier=1 GraceTime={GRACE}
PartitionName=gpu Nodes=ALL MaxTime=7-0 PriorityTier=1 GraceTime={GRACE}
PartitionName=cheap Nodes=ALL MaxTime=7-0 PriorityTier=1 PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL MaxTime=7-0 PriorityTier=9 PreemptMode=OFF
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=login
DbdAddr=10.77.0.1
SlurmUser=root
StorageType=accounting_storage/mysql
StorageLoc=slurm
StorageHost=localhost
StorageUser=root
PidFile=/run/cluster/slurmdbd.pid
LogFile=/run/cluster/slurmdbd.log
"""

# Devices in place of GPUs. SLURM itself assigns them to jobs and sets CUDA_VISIBLE_DEVICES.
GRES_CONF = f"Name=gpu File=/run/cluster/devices/gpu[0-{GPUS - 1}]\n"

MPI_CONF = "PMIxCliTmpDirBase=/run/cluster/local\n"

MARIADB = (
    "--no-defaults",
    "--user=root",
    "--datadir=/run/cluster/mariadb",
    "--socket=/run/mysqld/mysqld.sock",
    "--skip-networking",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-lock-wait-timeout=900",
)

CONFIGURATION = {
    "slurm.conf": SLURM_CONF,
    "slurmdbd.conf": SLURMDBD_CONF,
    "gres.conf": GRES_CONF,
    "mpi.conf": MPI_CONF,
}

LOGIN_SETUP = f"""
set -e
mount -t tmpfs -o mode=755,size=2g gigatile /run
mkdir -p /run/munge /run/mysqld /run/cluster/{{local,devices,slurmctld,etc}}
exec 2>/run/cluster/setup.err
mount -t tmpfs gigatile /dev/shm
hostname login
ip link set lo up
ip link add name cluster type bridge
ip addr add 10.77.0.1/24 dev cluster
ip link set cluster up
for i in $(seq 0 {GPUS - 1}); do mknod /run/cluster/devices/gpu$i c 1 3; done
dd if=/dev/urandom of=/run/munge/munge.key bs=1 count=1024 status=none
chmod 400 /run/munge/munge.key
echo '127.0.0.1 localhost
10.77.0.1 login
10.77.0.11 n1
10.77.0.12 n2
10.77.0.13 n3' >/run/cluster/hosts
mount --bind /run/cluster/hosts /etc/hosts
mount --bind /run/cluster/etc /etc/slurm
"""

# The first process of a host waits for its children as any init does; bash is enough of an init.
NODE_INIT = """
mount -t tmpfs gigatile /dev/shm
mount -t tmpfs gigatile /run/cluster/local
hostname $0
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip addr add $1/24 dev eth0
ip link set eth0 up
slurmd -D -N $0 </dev/null >/run/cluster/slurmd.$0.out 2>&1 &
wait
"""
