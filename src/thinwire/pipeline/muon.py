"""Muon, where scripts with pipelines have imported it from."""

from ..train.muon import Muon as Muon
