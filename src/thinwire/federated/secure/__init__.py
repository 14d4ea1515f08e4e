"""Secure aggregation: the server learns the sum of a round's replies, and no reply.

:mod:`.shamir` splits a secret, :mod:`.masks` draws what hides a vector, :mod:`.exchange` is what the clients of a round
and the server say to one another, :mod:`.trips` the messages in which they do, and :mod:`.run` what of a run is hidden.
:mod:`.noise` is differential privacy below the masks, and :mod:`.gaussian` draws its numbers.
"""
