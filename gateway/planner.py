"""Planning, off the event loop and within its time."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from budget.plan import plan
from budget.ports import Ports
from budget.types import Plan, PlanRequest
from gateway.client import Client
from gateway.job import Job


class Planner:
    """Threads of its own: planning never waits behind other work, and never takes more cores than these."""

    def __init__(self, num_threads: int = 2, plan: Callable[[PlanRequest, Ports], Plan] = plan) -> None:
        self._plan = plan
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="plan")

    async def plan(self, job: Job, client: Client) -> tuple[Plan, float]:
        """The plan and its milliseconds, unless the client leaves or a phase ends first.

        A plan that has not begun by then is taken back; one that has is let run, and its result dropped.

        Raises:
            PlanError: no plan can be made.
            ClientGone, QueueTimeout, FirstTokenTimeout, TotalTimeout: as the names say.
        """
        started, (limit_s, late) = time.monotonic(), job.phases.plan_limit()
        ports = job.model.bound_ports(job.namespace)
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._plan, job.planning, ports)
        try:
            plan = await client.wait_for(running, None if limit_s is None else job.arrival + limit_s)
        except TimeoutError:
            raise late from None
        return plan, (time.monotonic() - started) * 1000

    def close(self) -> None:
        """Start nothing new."""
        self._threads.shutdown(wait=False, cancel_futures=True)
