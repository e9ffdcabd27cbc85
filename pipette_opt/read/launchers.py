"""Options of launchers and wrappers, as far as needed to find the program that their command line starts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Role = Literal["launcher", "wrapper"]
"""
Role of a program: a ``launcher`` starts the processes of a job, a ``wrapper`` runs a command, such as in a
container.
"""

Writing = Literal["getopt", "argparse", "mpi"]
"""Syntax of options: ``mpi`` has long names after a single dash; ``argparse`` accepts ``_`` for ``-``."""


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """
    Options of a program that starts the command after its options.

    Parameters
    ----------
    flags, values, pairs
        Options with no value, one value, and two values: names separated by spaces, without dashes, ``-`` for ``_``. An
        option whose value must be attached (``--bcast=FILE``) is a flag.
    value_prefixes
        Beginnings of further option names with one value.
    all_take_values
        Whether options that are not listed take a value.
    positionals
        Number of words between options and command: an image, a duration, a CPU mask.
    assignments
        Whether ``NAME=VALUE`` words may precede the command.
    environment
        Options whose value sets environment variables.
    module_flag, direct_flag
        Options with which the program is a Python module, and with which it is a command in place of a Python script.
    nodes, processes, processes_per_node
        Options that give the number of hosts, processes, and processes per host.
    not_a_start
        Options with which no command is started.
    runs_python
        Whether the started program is a Python script or module.
    source
        Documentation of the options.
    """

    role: Role
    source: str
    writing: Writing = "getopt"
    flags: str = ""
    values: str = ""
    pairs: str = ""
    value_prefixes: tuple[str, ...] = ()
    all_take_values: bool = False
    positionals: int = 0
    assignments: bool = False
    environment: tuple[str, ...] = ()
    module_flag: tuple[str, ...] = ()
    direct_flag: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    processes_per_node: tuple[str, ...] = ()
    not_a_start: tuple[str, ...] = ()
    runs_python: bool = False

    @cached_property
    def num_values(self) -> Mapping[str, int]:
        """Number of values of each listed option."""
        counted = ((self.flags, 0), (self.values, 1), (self.pairs, 2))
        return {option: number for options, number in counted for option in options.split()}

    def values_of(self, option: str) -> int | None:
        """Return the number of values of an option, full or abbreviated; ``None`` if the option is unknown."""
        found = self.num_values.get(option)
        if found is not None or len(option) == 1:
            return found if found is not None or not self.all_take_values else 1
        if option.startswith(self.value_prefixes) or self.all_take_values:
            return 1
        numbers = {number for name, number in self.num_values.items() if name.startswith(option)}
        return numbers.pop() if len(numbers) == 1 else None

    def name_of(self, option: str) -> str:
        """Return the full name of an abbreviated option; an unknown or ambiguous name is returned unchanged."""
        if option in self.num_values or len(option) == 1:
            return option
        names = [name for name in self.num_values if name.startswith(option)]
        return names[0] if len(names) == 1 else option


_TORCHRUN = Launcher(
    role="launcher",
    source="torch 2.13, torch/distributed/run.py; --use-env: torch/distributed/launch.py",
    writing="argparse",
    flags="h help standalone m module no-python run-path virtual-local-rank use-env",
    values="nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval "
    "start-method event-log-handler role log-dir r redirects t tee local-ranks-filter duplicate-stdout-filters "
    "duplicate-stderr-filters node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle "
    "shutdown-timeout",
    module_flag=("m", "module"),
    direct_flag=("no-python",),
    nodes=("nnodes",),
    processes_per_node=("nproc-per-node",),
    not_a_start=("h", "help"),
    runs_python=True,
)

_DEEPSPEED = Launcher(
    role="launcher",
    source="deepspeed 0.15.4, deepspeed/launcher/runner.py",
    writing="argparse",
    flags="h help module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training "
    "bind-cores-to-rank",
    values="H hostfile i include e exclude num-nodes min-elastic-nodes max-elastic-nodes num-gpus num-accelerators "
    "master-port master-addr node-rank launcher launcher-args enable-each-rank-log autotuning bind-core-list ssh-port "
    "venv-script",
    module_flag=("module",),
    direct_flag=("no-python",),
    nodes=("num-nodes",),
    processes_per_node=("num-gpus", "num-accelerators"),
    not_a_start=("h", "help"),
    runs_python=True,
)

_ACCELERATE = Launcher(
    role="launcher",
    source="accelerate 1.15, accelerate/commands/launch.py",
    writing="argparse",
    flags="h help quiet q cpu multi-gpu tpu ipex enable-cpu-affinity dynamo-use-fullgraph dynamo-use-dynamic "
    "dynamo-use-regional-compilation use-deepspeed use-fsdp use-parallelism-config use-megatron-lm use-xpu "
    "same-network m module no-python tpu-cluster no-tpu-cluster tpu-use-sudo downcast-bf16 "
    "fp8-use-autocast-during-eval debug",
    values="config-file mixed-precision num-processes num-machines num-cpu-threads-per-process dynamo-backend "
    "dynamo-mode gpu-ids machine-rank main-process-ip main-process-port t tee log-dir role rdzv-backend rdzv-conf "
    "max-restarts monitor-interval vm env main-training-function deepspeed-config-file zero-stage gradient-clipping "
    "gradient-accumulation-steps zero3-init-flag zero3-save-16bit-model aws-access-key-id aws-secret-access-key "
    "mpirun-hostfile mpirun-ccl",
    value_prefixes=("offload-", "deepspeed-", "fsdp-", "megatron-lm-", "fp8-", "parallelism-config-"),
    module_flag=("m", "module"),
    direct_flag=("no-python",),
    nodes=("num-machines",),
    processes=("num-processes",),
    not_a_start=("h", "help"),
    runs_python=True,
)

_SLURM_VALUES = (
    "accel-bind account A acctg-freq autocomplete bcast-exclude begin b bb bbf chdir D cluster clusters M "
    "cluster-constraint comment constraint C container container-id context core-spec S cores-per-socket cpu-bind "
    "cpu_bind cpu-freq cpus-per-gpu cpus-per-task c deadline delay-boot dependency d distribution m epilog error e "
    "exclude x export extra extra-node-info B gpu-bind gpu-freq gpus G gpus-per-node gpus-per-socket gpus-per-task "
    "gres gres-flags hint ignore-signals input i jobid job-name J licenses L mail-type mail-user max-threads threads T "
    "mcs-label mem mem-bind mem_bind mem-per-cpu mem-per-gpu mem-update mincpus mpi msg-timeout network nodefile F "
    "nodelist w nodes N ntasks n ntasks-per-core ntasks-per-node ntasks-per-socket ntasks-per-tres ntasks-per-gpu "
    "open-mode output o pack-group het-group partition p power prefer priority profile prolog qos q relative r "
    "reservation resources runtime segment signal slurmd-debug sockets-per-node switches task-epilog task-prolog "
    "tasks-per-node thread-spec threads-per-core time t time-min tmp treewidth tres-bind tres-per-task wait W wckey "
    "container-image container-mounts container-workdir container-name container-save container-env"
)
_SLURM_FLAGS = (
    "async consolidate-segments contiguous debugger-test disable-status X exact help h hold H interactive label l "
    "multi-prog no-allocate Z overcommit O oversubscribe s parsable preserve-env E quiet Q quit-on-interrupt reboot "
    "spread-job spread-segments stepmgr test-only unbuffered u use-min-nodes usage verbose v version V "
    "wait-for-children whole bcast compress exclusive external-launcher immediate I kill-on-bad-exit K oom-kill-step "
    "nice no-kill k overlap propagate pty resv-ports send-libs x11 container-mount-home no-container-mount-home "
    "container-remap-root no-container-remap-root container-entrypoint no-container-entrypoint "
    "container-entrypoint-log container-writable container-readonly"
)
_SLURM_SOURCE = "Slurm, src/common/slurm_opt.c at 284c3b9; --container-...: Pyxis, args.c at 0619349"

_SRUN = Launcher(
    role="launcher",
    source=_SLURM_SOURCE,
    flags=_SLURM_FLAGS,
    values=_SLURM_VALUES,
    environment=("export",),
    nodes=("nodes", "N"),
    processes=("ntasks", "n"),
    processes_per_node=("ntasks-per-node", "tasks-per-node"),
    not_a_start=("help", "h", "usage", "version", "V"),
)

SBATCH = Launcher(
    role="launcher",
    source=_SLURM_SOURCE,
    flags=_SLURM_FLAGS.replace("kill-on-bad-exit K ", "") + " bell no-bell external get-user-env ignore-pbs no-requeue "
    "requeue no-shell wait W kill-command K",
    values=_SLURM_VALUES.replace(" wait W ", " ") + " array a argv batch environment export-file gid "
    "kill-on-invalid-dep uid wait-all-nodes wrap",
    environment=("export",),
    nodes=("nodes", "N"),
    processes=("ntasks", "n"),
    processes_per_node=("ntasks-per-node", "tasks-per-node"),
    not_a_start=("help", "h", "usage", "version", "V", "test-only"),
)
"""Options of ``sbatch``, on the command line and in ``#SBATCH`` lines."""

_MPIRUN = Launcher(
    role="launcher",
    source="PRRTE, src/mca/schizo/ompi/schizo_ompi.c at 52d5e4b; MPICH and Intel MPI: their reference of mpiexec",
    writing="mpi",
    flags="h help V version v verbose p parseable parsable debug-daemons debug-daemons-file leave-session-attached "
    "noprefix no-prefix allow-run-as-root uniform-nodes stop-on-exec stop-in-init stop-in-app report-state-on-timeout "
    "get-stack-traces no-aggregate-help s preload-binary fwd-environment no-app-prefix do-not-launch enable-recovery "
    "disable-recovery continuous display-comm display-comm-finalize soft show-progress report-child-jobs-separately "
    "xml tag-output timestamp-output merge-stderr-to-stdout display-devel-map display-devel-allocation report-bindings "
    "display-map display-allocation nolocal oversubscribe nooversubscribe use-hwthread-cpus bind-to-core bynode bycore "
    "byslot pernode output-proctable debug hetero-nodes q quiet do-not-resolve "
    "genvall envall genvnone envnone l prepend-rank print-rank-map print-all-exitcodes info rr grr-all nolocal-launch "
    "static",
    values="report-pid report-uri personality dvm tune launch-agent max-vm-size tmpdir prefix forward-signals xterm "
    "timeout spawn-timeout np n c N app output stdin preload-files x set-env prepend-env append-env unset-env wdir wd "
    "path pset hostfile machinefile default-hostfile host H memory-alloc-kinds gpu-support app-pmix-prefix map-by "
    "mapby rank-by rankby bind-to bindto display rtos runtime-options max-restarts with-ft initial-errhandler arch "
    "file output-directory output-filename display-topo cpu-set cpu-list cpus-per-proc cpus-per-rank npernode "
    "npersocket ppr amca am rankfile rf stream-buffering "
    "f hosts machine ppn perhost grr envlist genvlist genvexcl outfile-pattern errfile-pattern launcher launcher-exec "
    "bootstrap bootstrap-exec rmk iface configfile usize demux disable-hostname-propagation order-nodes localhost "
    "ranks-per-proc env-file",
    pairs="mca gmca omca gomca prtemca pmixmca genv env",
    environment=("x", "genv", "env"),
    nodes=(),
    processes=("np", "n", "c"),
    processes_per_node=("npernode", "N", "ppn", "perhost"),
    not_a_start=("h", "help", "V", "version", "info", "configfile", "app"),
)

_RAY_JOB = Launcher(
    role="launcher",
    source="Ray's reference of `ray job submit`",
    flags="no-wait help",
    values="address job-id submission-id runtime-env runtime-env-json working-dir metadata-json entrypoint-num-cpus "
    "entrypoint-num-gpus entrypoint-memory entrypoint-resources entrypoint-label-selector log-style log-color headers "
    "verify",
    not_a_start=("help",),
)

_JSRUN = Launcher(
    role="launcher",
    source="IBM Spectrum LSF's reference of jsrun",
    flags="h help V version i immediate",
    values="n nrs a tasks_per_rs tasks-per-rs c cpu_per_rs cpu-per-rs g gpu_per_rs gpu-per-rs r rs_per_host "
    "rs-per-host p np b bind d launch_distribution launch-distribution l latency_priority latency-priority E env F "
    "env_eval D env_no_propagate chdir e stdio_mode stdio-mode k stdio_stderr o stdio_stdout t stdio_input M smpiargs",
    environment=("E", "env"),
    processes=("p", "np"),
)

_HOROVODRUN = Launcher(
    role="launcher",
    source="Horovod's reference of horovodrun",
    writing="mpi",
    flags="h help v version check-build verbose disable-cache gloo mpi jsrun no-hierarchical-allreduce",
    values="np num-proc H hosts hostfile p ssh-port i ssh-identity-file network-interfaces start-timeout config-file "
    "output-filename mpi-args min-np max-np host-discovery-script slots reset-limit log-level",
    processes=("np", "num-proc"),
    not_a_start=("h", "help", "v", "version", "check-build"),
)

_COLOSSALAI = Launcher(
    role="launcher",
    source="ColossalAI, colossalai/cli/launcher",
    writing="argparse",
    flags="m help",
    values="H host hostfile include exclude num-nodes nproc-per-node master-port master-addr extra-launch-args "
    "ssh-port",
    module_flag=("m",),
    nodes=("num-nodes",),
    processes_per_node=("nproc-per-node",),
    not_a_start=("help",),
    runs_python=True,
)

_COMPOSER = Launcher(
    role="launcher",
    source="MosaicML Composer, composer/cli/launcher.py",
    writing="argparse",
    flags="h help m module-mode c command-mode v verbose version",
    values="n nproc stdout stderr world-size base-rank node-rank master-addr master-port run-directory",
    module_flag=("m", "module-mode"),
    direct_flag=("c", "command-mode"),
    processes=("world-size",),
    processes_per_node=("n", "nproc"),
    not_a_start=("h", "help", "version"),
    runs_python=True,
)

_CONTAINER_VALUES = (
    "B bind mount H home W workdir pwd cwd env env-file S scratch o overlay app network hostname dns security "
    "apply-cgroups cpus cpu-shares cpuset-cpus cpuset-mems memory memory-reservation memory-swap pids-limit "
    "blkio-weight blkio-weight-device device pem-path keys-path add-caps drop-caps fusemount run-script shell authfile"
)
_CONTAINER = Launcher(
    role="wrapper",
    source="Apptainer's reference of `apptainer exec`",
    flags="nv rocm nvccli c contain C containall e cleanenv i ipc p pid f fakeroot no-home no-init no-umask no-privs "
    "writable w writable-tmpfs userns u uts vm allow-setuid keep-privs disable-cache no-https compat no-eval sharens "
    "unsquash net oom-kill-disable passphrase no-mount-hostfs nvidia no-compat no-tmp-sandbox help h",
    values=_CONTAINER_VALUES + " no-mount",
    positionals=1,
    environment=("env",),
    not_a_start=("help", "h"),
)
_DOCKER_RUN = Launcher(
    role="wrapper",
    source="Docker's reference of `docker run`",
    flags="rm i interactive t tty d detach init privileged read-only P publish-all no-healthcheck sig-proxy "
    "disable-content-trust q quiet oom-kill-disable help it ti replace",
    all_take_values=True,
    positionals=1,
    environment=("e", "env"),
    not_a_start=("help",),
)

LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": _TORCHRUN,
    "torchrun_xpu": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "accelerate launch": _ACCELERATE,
    "accelerate-launch": _ACCELERATE,
    "srun": _SRUN,
    "salloc": _SRUN,
    "sbatch": SBATCH,
    **dict.fromkeys(
        ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "oshrun", "prterun", "prun"), _MPIRUN
    ),
    "horovodrun": _HOROVODRUN,
    "colossalai run": _COLOSSALAI,
    "composer": _COMPOSER,
    "ray job submit": _RAY_JOB,
    "jsrun": _JSRUN,
    "env": Launcher(
        role="wrapper",
        source="GNU coreutils, env",
        flags="i ignore-environment 0 null v debug list-signal-handling default-signal ignore-signal block-signal",
        values="u unset C chdir S split-string argv0 a",
        assignments=True,
    ),
    "nohup": Launcher(role="wrapper", source="GNU coreutils, nohup"),
    "setsid": Launcher(role="wrapper", source="util-linux, setsid", flags="c ctty f fork w wait"),
    "exec": Launcher(role="wrapper", source="bash, exec", flags="c l", values="a"),
    "command": Launcher(role="wrapper", source="bash, command", flags="p v V", not_a_start=("v", "V")),
    "builtin": Launcher(role="wrapper", source="bash, builtin"),
    "nice": Launcher(role="wrapper", source="GNU coreutils, nice", flags="1 2 3 4 5 6 7 8 9 0", values="n adjustment"),
    "ionice": Launcher(
        role="wrapper",
        source="util-linux, ionice",
        flags="t ignore",
        values="c class n classdata p pid P u",
        not_a_start=("p",),
    ),
    "stdbuf": Launcher(role="wrapper", source="GNU coreutils, stdbuf", values="i input o output e error"),
    "unbuffer": Launcher(role="wrapper", source="expect, unbuffer", flags="p"),
    "time": Launcher(
        role="wrapper", source="GNU time", flags="p portability v verbose a append q quiet", values="f format o output"
    ),
    "timeout": Launcher(
        role="wrapper",
        source="GNU coreutils, timeout",
        flags="foreground preserve-status v verbose f p",
        values="k kill-after s signal",
        positionals=1,
    ),
    "sudo": Launcher(
        role="wrapper",
        source="sudo's manual",
        flags="E H n S b A k B N preserve-env non-interactive set-home background",
        values="u user g group h host p prompt C close-from D chdir R chroot r role t type T command-timeout U",
        assignments=True,
    ),
    "numactl": Launcher(
        role="wrapper",
        source="numactl's manual",
        flags="a all b balancing l localalloc s show H hardware",
        values="i interleave w weighted-interleave p preferred P preferred-many m membind C physcpubind N cpunodebind "
        "S shmem f file o offset",
        not_a_start=("s", "show", "H", "hardware"),
    ),
    "taskset": Launcher(
        role="wrapper",
        source="util-linux, taskset",
        flags="a all-tasks c cpu-list p pid",
        positionals=1,
        not_a_start=("p", "pid"),
    ),
    "chrt": Launcher(
        role="wrapper", source="util-linux, chrt", flags="b f i o r d a m v R", values="T P D", positionals=1
    ),
    "nsys profile": Launcher(role="wrapper", source="Nsight Systems' user guide", all_take_values=True),
    "nsys launch": Launcher(role="wrapper", source="Nsight Systems' user guide", all_take_values=True),
    "ncu": Launcher(
        role="wrapper",
        source="Nsight Compute's reference of ncu",
        flags="f force-overwrite nvtx csv quiet verbose call-stack print-summary-none import-source-none v h help",
        values="o export set section k kernel-name c launch-count s launch-skip nvtx-include nvtx-exclude metrics "
        "replay-mode page profile-from-start clock-control cache-control log-file graph-profiling target-processes "
        "mode kernel-id kernel-name-base devices import-source source-folders config-file print-summary",
    ),
    "rocprof": Launcher(
        role="wrapper",
        source="ROCm's reference of rocprof",
        flags="stats hip-trace hsa-trace sys-trace roctx-trace timestamp basenames",
        values="i o d t m",
    ),
    "rocprofv3": Launcher(
        role="wrapper",
        source="ROCm's reference of rocprofv3",
        flags="hip-trace hsa-trace sys-trace "
        "kernel-trace memory-copy-trace marker-trace rccl-trace stats s r runtime-trace",
        values="i input o output-file d output-directory output-format f pmc log-level",
    ),
    "py-spy record": Launcher(
        role="wrapper",
        source="py-spy's reference of record",
        flags="n native s subprocesses g gil i idle t threads nonblocking F full-filenames",
        values="o output f format d duration r rate p pid",
        not_a_start=("p", "pid"),
    ),
    "strace": Launcher(
        role="wrapper", source="strace's manual", flags="f ff c C t tt ttt T v q y yy k", values="o e s p P u E S I a O"
    ),
    "singularity exec": _CONTAINER,
    "singularity run": _CONTAINER,
    "apptainer exec": _CONTAINER,
    "apptainer run": _CONTAINER,
    "docker run": _DOCKER_RUN,
    "docker exec": _DOCKER_RUN,
    "podman run": _DOCKER_RUN,
    "podman exec": _DOCKER_RUN,
    "nvidia-docker run": _DOCKER_RUN,
    "podman-hpc run": _DOCKER_RUN,
    "shifter": Launcher(
        role="wrapper",
        source="Shifter's manual",
        flags="clearenv v",
        values="image i module m volume V workdir w env e",
    ),
    "enroot start": Launcher(
        role="wrapper",
        source="enroot's reference of start",
        flags="r root w rw",
        values="c rc e env m mount",
        environment=("e", "env"),
        positionals=1,
    ),
    "uv run": Launcher(
        role="wrapper",
        source="uv's reference of `uv run`",
        flags="m module frozen locked no-sync isolated active no-project all-extras no-dev dev q quiet v verbose "
        "exact offline no-cache n no-config all-groups no-default-groups only-dev no-editable all-packages s script "
        "no-env-file refresh reinstall U upgrade no-progress native-tls",
        all_take_values=True,
        module_flag=("m", "module"),
    ),
    **dict.fromkeys(
        ("conda run", "mamba run", "micromamba run"),
        Launcher(
            role="wrapper",
            source="conda's reference of `conda run`",
            flags="no-capture-output live-stream v verbose dev debug-wrapper-scripts no-stdin",
            values="n name p prefix cwd",
        ),
    ),
    **dict.fromkeys(
        ("poetry run", "pipenv run", "pdm run", "pixi run", "hatch run", "rye run"),
        Launcher(role="wrapper", source="their references of `run`"),
    ),
}
"""Launchers and wrappers by name; a name of two words is a subcommand."""

PYTHON = Launcher(
    role="wrapper",
    source="Python 3.13, Python/getopt and `python --help`",
    flags="b B d E h i I O P q R s S u v V x help version",
    values="W X check-hash-based-pycs",
)
"""Options of the Python interpreter before ``-c``, ``-m`` or the script."""

PYTHON_MODULES: Mapping[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic.multiprocessing": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate",
}
"""Python modules that are launchers under ``python -m``, with their names in :data:`LAUNCHERS`."""

PYTHON_TOOLS: Mapping[str, Launcher] = {
    "cProfile": Launcher(
        role="wrapper", source="Python, cProfile", flags="m", values="o s outfile sort", runs_python=True
    ),
    "pdb": Launcher(role="wrapper", source="Python, pdb", flags="m", values="c command", runs_python=True),
    "debugpy": Launcher(
        role="wrapper",
        source="debugpy's reference",
        flags="wait-for-client m",
        values="listen connect log-to pid",
        runs_python=True,
    ),
}
"""Python modules that, under ``python -m``, run another Python script or module."""

SHELLS = ("bash", "sh", "dash", "zsh", "ksh")

REMOTE = ("ssh", "pdsh", "clush", "dsh", "parallel-ssh", "pssh")
"""Programs that run a shell text on other hosts."""

REMOTE_VALUES: Mapping[str, str] = {
    "ssh": "B b c D E e F I i J L l m O o P p Q R S W w",
    "pdsh": "w x g X f u t l R e P a M",
    "clush": "w x g X f t u l n o b",
}
"""Short options with a value, by remote shell (manuals of OpenSSH, pdsh and ClusterShell)."""

HOSTS_FIRST = ("ssh",)
"""Remote shells whose first word after the options is the host."""

PYTHON_NAME = re.compile(r"python(\d+(\.\d+)*)?t?|pypy3?")
"""File names of Python interpreters."""
