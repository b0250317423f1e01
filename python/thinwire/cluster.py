"""The place that a cluster's scheduler gave this process,
in the variables by which torchrun would tell it."""
import os
from typing import Dict

from thinwire.extension import _C


def cluster_environment() -> Dict[str, str]:
    """Sets what ``torch.distributed.init_process_group`` reads,
    where Slurm's ``srun`` started this process and torchrun did not.

    These are RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, and THINWIRE_JOB. Those that are set
    keep their values. Does nothing where RANK and WORLD_SIZE are set, and in a process that is no task of
    srun. So a script that calls it starts by torchrun as before.

    Returns all six, or nothing where it did nothing.
    Raises ValueError when a variable of Slurm is missing or cannot be.
    """
    variables = _C.srun_variables()
    os.environ.update(variables)
    return variables
