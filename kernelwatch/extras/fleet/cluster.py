"""A connection to a Dask cluster: which workers it has, and which of them can measure."""

import json
import logging
import time
import warnings
import zlib
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import cloudpickle
import distributed
from rich.console import Console

from kernelwatch.extras.fleet import remote
from kernelwatch.extras.fleet.local import Local
from kernelwatch.extras.fleet.schedule import Job, Worker
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import UserError

CONNECT_S = 10.0
LOST_S = 20.0  # without an answer of the scheduler
LOOK_S = 1.0  # between two looks at which workers there are
REPLY_S = 60.0  # for a reply to come over the network
GONE_S = 2.0  # for a reply of which the scheduler may have a copy, though its worker is gone
GOES_ON = "what was measured is in the results; the same command goes on there"


def reply_of(future: distributed.Future, *, gone: bool = False) -> dict[str, Any] | None:
    """What a worker has sent, None if it died first. `gone`: whether it is dead, so that nothing more will come."""
    try:
        if gone and not future.done():
            return None
        return dict(json.loads(zlib.decompress(future.result(timeout=GONE_S if gone else REPLY_S))))
    except (OSError, TimeoutError, CancelledError, distributed.KilledWorker):
        return None
    except Exception as error:  # of the function on the worker
        return {"why": f"{type(error).__name__}: {error}"}
    finally:
        future.release()


class ByValue:
    """A function that arrives as its code, since neither scheduler nor workers can import this engine."""

    def __init__(self, function: Callable[..., bytes]) -> None:
        self.code = cloudpickle.dumps(function)

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return cloudpickle.loads, (self.code,)

    def __call__(self, *arguments: object) -> bytes:
        raise NotImplementedError("it is called on a worker")


class Cluster:
    """A connection to a cluster.

    `address`: of its scheduler, the file that the scheduler wrote, or "local". Raises: UserError.
    """

    def __init__(self, project: Project, address: str, console: Console) -> None:
        self.project, self.address, self.console = project, address, console
        for library in ("distributed", "tornado", "asyncio"):  # what is lost is said by this module
            logging.getLogger(library).setLevel(logging.CRITICAL)
        cloudpickle.register_pickle_by_value(remote)
        self._local = Local() if address == "local" else None
        try:
            if self._local:
                self._client = self._local.client()
            else:
                where = {"scheduler_file" if address.endswith(".json") else "address": address}
                self._client = distributed.Client(**where, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            self.close()
            raise UserError(
                f"no Dask scheduler answers at {address} ({error or type(error).__name__}); start one with `dask "
                "scheduler`, or take --cluster local"
            ) from None
        self.workers: dict[str, Worker] = {}
        self.probes: dict[str, distributed.Future] = {}  # by address
        self.running: dict[str, tuple[Job, distributed.Future]] = {}
        self.refused: set[str] = set()
        self.strikes: dict[str, int] = {}
        self.benchmarks: dict[str, str] = {}  # kind -> asv's benchmarks.json
        self.known: Mapping[str, Any] = {}  # Dask's own facts of each worker
        self.heard = time.monotonic()
        console.print(f"dashboard: {self._client.dashboard_link}", highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what runs, which ends its processes, and let the cluster go."""
        if client := getattr(self, "_client", None):
            for _, future in self.running.values():
                future.release()
            client.close(timeout=CONNECT_S)
        if self._local:
            self._local.close()

    @property
    def machines(self) -> list[str]:
        """The kinds of the workers that have measured, or could have."""
        return sorted(self.benchmarks)

    # --- workers -----------------------------------------------------------------------------------------------------

    def submit(self, address: str, name: str, work: Callable[..., bytes], *arguments: Any) -> distributed.Future:
        resources = {"GPU": 1} if "GPU" in self.known.get(address, {}).get("resources", {}) else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the pack of a checkout is large
            return self._client.submit(
                ByValue(work),
                *arguments,
                key=f"{name}-{time.monotonic_ns()}",
                workers=[address],
                resources=resources,
                pure=False,
                retries=0,
            )

    def look(self, checkout: tuple[str, bytes, str]) -> bool:
        """See which workers have come and gone; whether the scheduler answers. Raises: UserError if it is lost."""
        if time.monotonic() - self.heard < LOOK_S and self.known and self._client.status == "running":
            self.ask()
            return True
        if self._local:
            self._local.tend()
        if self._client.status == "connecting":  # again; it gives up by itself
            return False
        try:
            self.known = self._client.sync(self._present)
            self.heard = time.monotonic()
        except (OSError, TimeoutError, RuntimeError):
            if time.monotonic() - self.heard > LOST_S or self._client.status == "closed":
                raise self.lost() from None
            return False
        for address in [*self.workers, *self.probes]:
            if address not in self.known:
                self.workers.pop(address, None)
                if probe := self.probes.pop(address, None):
                    probe.release()
        for address in self.known.keys() - self.workers.keys() - self.probes.keys() - self.refused:
            self.probes[address] = self.submit(address, "prepare", remote.prepare, *checkout)
        self.ask()
        return True

    async def _present(self) -> dict[str, Any]:
        """Dask's facts of the workers that are there, by address. Raises: OSError if the scheduler does not answer."""
        if self._client.status != "running":
            raise OSError("there is no connection")
        # Not scheduler_info: the client asks for itself now and then, and for no workers, and that answer may replace
        # this one before it is read. All workers would seem to have gone.
        return dict((await self._client.scheduler.identity(n_workers=-1))["workers"])

    def lost(self) -> UserError:
        return UserError(f"the scheduler at {self.address} is lost; {GOES_ON}")

    def ask(self) -> None:
        """Take in workers that have said what they are."""
        for address, probe in list(self.probes.items()):
            if not probe.done():
                continue
            del self.probes[address]
            answer, name = reply_of(probe), str(self.known[address].get("name") or address)
            if answer is None:  # it has died
                continue
            if "why" in answer:
                self.refuse(address, name, answer["why"])
                continue
            told = {key: answer[key] for key in ("machine", "gpu", "host", "conditions")}
            self.workers[address] = Worker(address, name, **told)
            self.benchmarks.setdefault(told["machine"], answer["benchmarks"])

    def refuse(self, address: str, name: str, why: str) -> None:
        self.refused.add(address)
        self.workers.pop(address, None)
        self.console.print(f"worker {name} is skipped: {why}", style="yellow", markup=False, highlight=False)
