"""Data-parallel training over slow links: two lines in a script that uses DistributedDataParallel.

::

    from thinwire.ddp import DEF, compress

    c = compress(ddp_model, optimizer, DEF(ratio=64))
"""

from .compress import compress
from .handle import Compressed
from .methods import DEF, DEFA, EF, EF21, SAEF, Hook, Method, PSync

__all__ = ["DEF", "DEFA", "EF", "EF21", "SAEF", "Compressed", "Hook", "Method", "PSync", "compress"]
