"""Secure aggregation: the server learns the sum of a round's replies, and no reply.

:mod:`.shamir` splits a secret, :mod:`.masks` draws what hides a vector, :mod:`.exchange` is what the clients of a round
and the server say to one another, and :mod:`.run` is where a run does so.
"""
