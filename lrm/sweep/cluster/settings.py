"""What a cluster's jobs ask for: ``cluster.yaml``, and ``--cluster-set`` on top of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from lrm.errors import UserError
from lrm.model.config import Strict
from lrm.plan.config import validate
from lrm.plan.yaml import merge, parse_override, read_yaml

DEFAULT_FILE = Path("cluster.yaml")
ENGINES = ("slurm", "local")


class Cluster(Strict):
    """What each task of an array job gets. A task trains one run on each of its GPUs at a time."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus: int = Field(1, ge=0, le=1024)  # 0: runs on CPUs, one for every ``threads`` of ``cpus``
    cpus: int = Field(4, ge=1, le=4096)
    memory_gb: float | None = Field(None, gt=0)
    hours: float = Field(24.0, gt=0)  # limit of a task; what is not done then is queued again
    # Estimated work that one task is meant for. It decides how many tasks there are; none: 80% of
    # ``hours``.
    work_hours: float | None = Field(None, gt=0)
    # Runs of one shape are one array job each, of at most so many tasks; SLURM's limit is 1001.
    most_tasks: int = Field(1000, ge=1)
    # Tasks of one array that run at the same time. ``read`` makes it none for local ones, which all
    # run at once.
    at_once: int | None = Field(64, ge=1)
    notice_seconds: int = Field(120, ge=10)  # before the limit, for a checkpoint
    price_per_hour: float | None = Field(None, ge=0)  # US dollars a GPU; none: the scale's
    # Words in front of Python: apptainer exec --nv image.sif; or options of srun for pyxis.
    container: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()  # lines of shell before Python, such as module load cuda
    sbatch: dict[str, str | int | float | bool] = {}  # any other option, by its long name

    @model_validator(mode="after")
    def _there_is_time_to_train(self) -> Cluster:
        # SLURM may give notice a minute early.
        if self.hours * 3600 < 2 * (self.notice_seconds + 60):
            raise ValueError(
                f"hours = {self.hours:g} leaves no time between the start and notice_seconds = "
                f"{self.notice_seconds} before its end; raise hours, or lower notice_seconds"
            )
        return self

    @property
    def of_slurm(self) -> list[str]:
        """The names of what is asked for and has a meaning for SLURM alone."""
        names = ("partition", "account", "qos", "memory_gb", "container", "sbatch")
        return [name for name in names if getattr(self, name)]

    def workers(self, threads: int) -> int:
        """Runs that a task trains at a time; each uses ``threads`` threads."""
        return self.gpus or max(1, self.cpus // threads)


def read(engine: str, file: Path | None, overrides: list[str]) -> Cluster:
    """The settings for ``engine``, one of ``ENGINES``; raises UserError where they are no such."""
    if file is not None and not file.exists():
        raise UserError(f"--cluster-file: {file} is not there; write it, as lrm/sweep/cluster/"
                        "README.md shows")  # fmt: skip
    if file is None and not DEFAULT_FILE.exists():
        print(
            f"no {DEFAULT_FILE} in {Path.cwd()}: jobs ask for the defaults, but for --cluster-set"
        )
    file = file or DEFAULT_FILE
    data: dict[str, Any] = read_yaml(file) if file.exists() else {}
    for override in overrides:
        data = merge(data, parse_override(override, "--cluster-set"))
    if engine == "local":
        # Such tasks start at once, and each would be given the first GPUs.
        data = {**data, "gpus": 0, "at_once": None}
    return validate(Cluster, data, str(file) if file.exists() else f"--cluster {engine}")
