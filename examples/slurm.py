#!/usr/bin/env python3
"""Measure a range of commits on GPUs that Slurm hands out: one job and one worker for each.

Run it in a project, on a node from which sbatch works and which the jobs reach, with the interpreter that the jobs use:

    python examples/slurm.py --jobs 4 --partition gpu -- main~40..main

What follows the two dashes goes to `bench`. The jobs end with this script, also if it is interrupted. For another batch
system take its cluster from dask_jobqueue (PBSCluster, LSFCluster, SGECluster, ...); the rest stays.
"""

import argparse
import subprocess
import sys

from dask_jobqueue import SLURMCluster


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure commits on GPUs that Slurm hands out.")
    parser.add_argument("--jobs", type=int, default=2, help="how many GPUs (default: 2)")
    parser.add_argument("--partition", help="Slurm's partition")
    parser.add_argument("--gres", default="gpu:1", help="what a job gets, such as gpu:h200:1 (default: gpu:1)")
    parser.add_argument("--walltime", default="08:00:00", help="the longest time of a job")
    parser.add_argument("--logs", default=".asv/slurm", help="a folder for what the jobs print (default: .asv/slurm)")
    parser.add_argument("--show", action="store_true", help="print the job's script, and submit nothing")
    parser.add_argument("bench", nargs="*", help="arguments of bench, after --")
    options = parser.parse_args()
    with SLURMCluster(
        queue=options.partition,
        walltime=options.walltime,
        cores=1,  # one job of the fleet at a time
        job_cpu=8,  # compilers and the CPU's cells use more than one
        memory="32 GB",
        processes=1,
        nanny=False,
        job_extra_directives=[f"--gres={options.gres}"],
        worker_extra_args=["--resources", "GPU=1"],
        log_directory=options.logs,
        python=sys.executable,
    ) as cluster:
        if options.show:
            print(cluster.job_script())
            return 0
        cluster.scale(jobs=options.jobs)
        bench = [sys.executable, "-m", "kernelwatch", "bench", "--cluster", cluster.scheduler_address]
        return subprocess.run([*bench, *options.bench], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
