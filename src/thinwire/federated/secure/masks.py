"""Keys, and the numbers that hide a vector: all from the primitives of ``cryptography``, imported where they are used.

Two clients agree on a secret by X25519 (RFC 7748), make keys of it by HKDF-SHA-256 (RFC 5869), draw masks by ChaCha20
and send shares under ChaCha20-Poly1305 (RFC 8439).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ...errors import CombinationError, WireError

LENGTH = 32  # bytes of a key, private or public, and of a seed
PIECE = 1 << 18  # numbers that are drawn at once


def check_installed() -> None:
    """``CombinationError`` without the package, which only runs with a secure sum import."""
    if find_spec("cryptography") is None:
        raise CombinationError('SecureSum needs the package cryptography: pip install "thinwire[secure]"')


@dataclass(frozen=True)
class Pair:
    """A private key and its public one."""

    private: bytes
    public: bytes

    @staticmethod
    def of(private: bytes) -> Pair:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return Pair(private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())

    @staticmethod
    def new() -> Pair:
        return Pair.of(secrets.token_bytes(LENGTH))  # RFC 7748, section 5: any 32 bytes are a key


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The key for a purpose that the holders of two private keys share. ``WireError`` for what is no public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise WireError(f"a public key of {LENGTH} bytes is expected: {error}") from error
    return derive(shared, purpose)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A key for a purpose."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(hashes.SHA256(), LENGTH, None, purpose).derive(secret)


def seal(key: bytes, data: bytes, about: bytes) -> bytes:
    """Data that only a holder of the key can read, 16 bytes longer. A key seals once."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), data, about)


def unseal(key: bytes, data: bytes, about: bytes) -> bytes:
    """What :func:`seal` sealed. ``WireError`` where it is anything else."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), data, about)
    except InvalidTag as error:
        raise WireError("a share that was sealed with another key, or changed on its way") from error


def stream(seed: bytes, name: str) -> Callable[[int], bytes]:
    """What gives so many more bytes that are as good as random, each time: a function of seed and name."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = Cipher(algorithms.ChaCha20(derive(seed, name.encode()), bytes(16)), None).encryptor()
    return lambda size: cipher.update(bytes(size))


def draw(seed: bytes, name: str, count: int, width: int) -> Int64[Tensor, " n"]:
    """``count`` numbers of ``width`` bits for a field, each as likely as any other: a function of seed and name."""
    more = stream(seed, name)
    size, parts = 4 if width <= 32 else 8, list[np.ndarray]()
    for at in range(0, count, PIECE):
        words = np.frombuffer(more(min(PIECE, count - at) * size), f"<i{size}")
        parts.append(words.astype(np.int64) & ((1 << width) - 1))
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.int64, device="cpu")
