"""A Slurm of one node, whose two GPUs are files: its daemons, as the user who runs the tests."""

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.repositories import wait_until

DAEMONS = ("slurmctld", "slurmd")
GPUS = {"gpu0": "/dev/null", "gpu1": "/dev/zero"}  # Slurm wants devices, and looks at their kind only
# More CPUs and memory than are here: jobs are to start, and to measure next to nothing.
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
KillWait=5
TaskPlugin=task/none
TaskProlog={folder}/prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=256000 Gres=gpu:2
PartitionName=all Nodes={host} Default=YES State=UP
"""
# The GPU that Slurm has given a job is the one that its worker believes to have.
PROLOG = """\
#!/bin/sh
echo "export FAKE_GPU=gpu$CUDA_VISIBLE_DEVICES"
"""


def program(name: str) -> str | None:
    """The path of one of Slurm's programs; None if it is not installed."""
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"]))


def missing() -> str | None:
    """Why there is no Slurm."""
    return next((f"{name} is not installed" for name in DAEMONS if program(name) is None), None)


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A Slurm whose files lie in a folder; the environment variables by which its commands find it."""
    with ExitStack() as taken:
        sockets = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in DAEMONS]
        ports = [each.getsockname()[1] for each in sockets]
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(host=host, ports=ports, user=getpass.getuser(), folder=folder))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    for name, device in GPUS.items():
        (folder / name).symlink_to(device)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1] Flags=nvidia_gpu_env\n")
    (folder / "prolog").write_text(PROLOG)
    (folder / "prolog").chmod(0o755)
    own = {"SLURM_CONF": str(configuration)}

    def said(*command: str) -> list[str]:
        done = subprocess.run(
            command, env=os.environ | own, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    daemons = [
        subprocess.Popen(
            [str(program(name)), "-D"],
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in DAEMONS
    ]
    try:
        ready = wait_until(lambda: said("sinfo", "--noheader", "--format=%T") == ["idle"], 30)
        assert ready, "".join(path.read_text() for path in folder.glob("*.log"))
        yield own
        assert wait_until(lambda: not said("squeue", "--noheader"), 30), said("squeue")
    finally:
        said("scancel", "--signal=KILL", f"--user={getpass.getuser()}")  # of a test that failed
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()
