"""Federated training: who trains when, what crosses the wire, and what is kept of it."""

from .buffered import Buffered
from .client import ClientState
from .hand import ClientReply, ClientView, ServerState, client_round, exchange_keys, server_round, start
from .ledger import Ledger
from .network import Network
from .privacy import Privacy
from .result import Result
from .sampler import Draw, PowerOfChoice, Sampler
from .sessions import Availability, Recorded, Sessions
from .setting import Setting
from .simulate import simulate
from .simulation import Simulation

__all__ = [
    "Availability",
    "Buffered",
    "ClientReply",
    "ClientState",
    "ClientView",
    "Draw",
    "Ledger",
    "Network",
    "PowerOfChoice",
    "Privacy",
    "Recorded",
    "Result",
    "Sampler",
    "ServerState",
    "Sessions",
    "Setting",
    "Simulation",
    "client_round",
    "exchange_keys",
    "server_round",
    "simulate",
    "start",
]
