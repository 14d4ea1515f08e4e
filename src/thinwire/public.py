"""The public names: what `import thinwire as tw` finds. Each is listed once, in the `__all__` of its package."""

from . import algorithms, errors, federated, links, local, losses, optimizers, params, robust, schedules, task, wire
from .algorithms import *
from .config import complete
from .expression import parse
from .federated import *
from .key import Key
from .links import *
from .local import *
from .losses import *
from .optimizers import *
from .params import *
from .robust import *
from .schedules import *
from .studies.loading import load
from .task import *
from .version import code_version as code_version
from .wire import dumps, loads, restore

__all__ = ["Key", "complete", "dumps", "errors", "load", "loads", "parse", "restore", "wire"]
__all__ += algorithms.__all__
__all__ += links.__all__
__all__ += local.__all__
__all__ += losses.__all__
__all__ += optimizers.__all__
__all__ += params.__all__
__all__ += federated.__all__
__all__ += robust.__all__
__all__ += schedules.__all__
__all__ += task.__all__
