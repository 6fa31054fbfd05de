"""The one place where thread counts are set: torch, BLAS and rayon read them when they are first imported."""

import os

COMPUTE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The engine's pool: torch and its BLAS."""
SIDE = ("OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
"""numpy's BLAS and the tokenizers' rayon work beside the engine: more than one thread each would take its cores."""

SPIN_COUNT = ("GOMP_SPINCOUNT", "1000")
"""How long an OpenMP thread spins for the others before it sleeps. The library's default, some milliseconds, is ruinous
where anything else wants a core, our own planner included: a decode step then waits whole time slices at every barrier.
"""


def available_cpus() -> int:
    """CPUs that this process may use: its affinity mask, and the container's CPU quota where there is one."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, cpus if quota is None else min(cpus, int(quota + 0.5)))


def set_thread_counts(num_threads: int | None) -> None:
    """Fix the thread counts; to be called before torch, numpy or tokenizers are imported.

    A number given by the operator wins over the environment, the environment over the default (all available CPUs).
    """
    for name in COMPUTE:
        if num_threads is not None:
            os.environ[name] = str(num_threads)
        else:
            os.environ.setdefault(name, str(available_cpus()))
    for name in SIDE:
        os.environ.setdefault(name, "1")
    os.environ.setdefault(*SPIN_COUNT)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _cgroup_quota() -> float | None:
    """CPUs by cgroup v2 `cpu.max` (quota and period in microseconds); None: no limit, or no cgroup v2."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)
