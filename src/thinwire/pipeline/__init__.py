"""Pipelined training over slow links: layers on different machines, none of which waits for the others.

::

    stages = split(model, parts=4, sample=batch)
    train = pipeline(stages, optimizer=lambda p: torch.optim.SGD(p, 0.1), schedule=DSP((1, 1, 1, 0), (6, 4, 2, 0)))
    for x, y in loader:
        loss = train.step(x, y)
"""

from ..train.muon import Muon
from . import law as law
from . import schedule
from .runtime import Pipeline, pipeline
from .schedule import *  # noqa: F403
from .simulation import Simulation, simulate_pipeline
from .split import split
from .stored import AQSGD

__all__ = ["AQSGD", "Muon", "Pipeline", "Simulation", "pipeline", "simulate_pipeline", "split"]
__all__ += schedule.__all__
