"""Count the processes that the kernel has killed because of too little memory."""

import contextlib
import re
from pathlib import Path

_KILLED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int:
    """Return the number of OOM kills in this process's control group; 0 if they are not counted.

    SLURM limits the memory of a job by a control group, and reports a kill only at the job's end.

    Source of the files: Linux, admin-guide/cgroup-v2, `memory.events`; of version 1,
    admin-guide/cgroup-v1/memory, `memory.oom_control`.

    Args:
        root: the folder with `proc` and `sys`.
    """
    counts = [0]
    with contextlib.suppress(OSError):  # not Linux
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                file = root / f"sys/fs/cgroup{group}" / "memory.events"
            elif "memory" in controllers.split(","):
                file = root / f"sys/fs/cgroup/memory{group}" / "memory.oom_control"
            else:
                continue
            with contextlib.suppress(OSError):  # mounted elsewhere, or not readable
                counts += map(int, _KILLED.findall(file.read_text()))
    return max(counts)
