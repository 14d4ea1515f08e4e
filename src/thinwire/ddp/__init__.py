"""Data-parallel training over slow links: two lines in a script that uses DistributedDataParallel.

::

    from thinwire.ddp import DEF, compress

    c = compress(ddp_model, optimizer, DEF(ratio=64))
"""

from ..train.muon import Muon
from . import methods
from .compress import compress
from .handle import Compressed
from .methods import *  # noqa: F403
from .prediction import predict
from .rounds import Seconds

__all__ = ["Compressed", "Muon", "Seconds", "compress", "predict"]
__all__ += methods.__all__
