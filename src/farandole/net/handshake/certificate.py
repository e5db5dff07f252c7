"""The certificate of a job, derived from its secret.

Every process of the job knows the secret and derives the same key and certificate, so nothing else
has to be distributed, and a process without the secret has neither. The key is on NIST P-256. Only
the arithmetic that ``ssl`` lacks is implemented here: the public key and the certificate's
self-signature (FIPS 186-5, RFC 5280). Its running time does not depend on a peer's data; OpenSSL
negotiates and uses the session keys.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_SEQUENCE, _SET, _INTEGER, _BITS, _OCTETS = 0x30, 0x31, 0x02, 0x03, 0x04  # DER tags
_OBJECT, _TEXT, _TIME, _LONG_TIME, _TRUE = 0x06, 0x0C, 0x17, 0x18, b"\x01\x01\xff"
# id-ecPublicKey, prime256v1
_EC_KEY, _CURVE = bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d030107")
# ecdsa-with-SHA256, commonName
_ECDSA, _COMMON_NAME = bytes.fromhex("2a8648ce3d040302"), bytes.fromhex("550403")
# basicConstraints, subjectKeyIdentifier
_BASIC, _KEY_NAME = bytes.fromhex("551d13"), bytes.fromhex("551d0e")

Point = tuple[int, int, int]  # Jacobian: x / z^2, y / z^3


def make(secret: bytes) -> tuple[str, str]:
    """Return certificate and private key as PEM. The same secret gives the same result."""
    key = _number(secret, b"tls key")
    public = b"\4" + b"".join(part.to_bytes(32, "big") for part in times(key))
    name = _der(
        _SEQUENCE,
        _der(
            _SET, _der(_SEQUENCE, _der(_OBJECT, _COMMON_NAME), _der(_TEXT, b"a job of Farandole"))
        ),
    )
    signed_by = _der(_SEQUENCE, _der(_OBJECT, _ECDSA))
    # No validity period: the certificate is useless after the job and its secret are gone, and the
    # clocks of hosts differ.
    dates = _der(_SEQUENCE, _der(_TIME, b"700101000000Z"), _der(_LONG_TIME, b"99991231235959Z"))
    public_key = _der(
        _SEQUENCE,
        _der(_SEQUENCE, _der(_OBJECT, _EC_KEY), _der(_OBJECT, _CURVE)),
        _der(_BITS, b"\0", public),
    )
    key_name = hashlib.sha256(public).digest()[:20]
    extensions = _der(
        _SEQUENCE,
        _der(_SEQUENCE, _der(_OBJECT, _BASIC), _TRUE, _der(_OCTETS, _der(_SEQUENCE, _TRUE))),
        _der(_SEQUENCE, _der(_OBJECT, _KEY_NAME), _der(_OCTETS, _der(_OCTETS, key_name))),
    )
    content = _der(
        _SEQUENCE,
        _der(0xA0, _integer(2)),
        _integer(int.from_bytes(key_name[:16], "big")),
        signed_by,
        name,
        dates,
        name,
        public_key,
        _der(0xA3, extensions),
    )
    signature = _der(
        _SEQUENCE, *map(_integer, _sign(key, _number(secret, b"tls nonce" + content), content))
    )
    certificate = _der(_SEQUENCE, content, signed_by, _der(_BITS, b"\0", signature))
    private = _der(
        _SEQUENCE,
        _integer(1),
        _der(_OCTETS, key.to_bytes(32, "big")),
        _der(0xA0, _der(_OBJECT, _CURVE)),
        _der(0xA1, _der(_BITS, b"\0", public)),
    )
    return _pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", private)


def _number(secret: bytes, purpose: bytes) -> int:
    """Derive a number from 1 to the curve's order minus one."""
    return int.from_bytes(hmac.digest(secret, purpose, "sha512"), "big") % (_ORDER - 1) + 1


def _sign(key: int, nonce: int, content: bytes) -> tuple[int, int]:
    r = times(nonce)[0] % _ORDER
    digest = int.from_bytes(hashlib.sha256(content).digest(), "big")
    return r, pow(nonce, -1, _ORDER) * (digest + r * key) % _ORDER


def times(number: int) -> tuple[int, int]:
    """Return the curve's base point multiplied by ``number``."""
    total: Point = (0, 1, 0)
    for bit in f"{number:0256b}":  # both steps for each bit, so that timing reveals nothing
        total = _double(total)
        more = _add_base(total)
        total = more if bit == "1" else total
    inverse = pow(total[2], -1, _P)
    return total[0] * inverse**2 % _P, total[1] * inverse**3 % _P


def _double(point: Point) -> Point:
    x, y, z = point
    square, product = y * y % _P, x * y * y % _P
    slope = 3 * (x - z * z) * (x + z * z) % _P
    new = (slope * slope - 8 * product) % _P
    return new, (slope * (4 * product - new) - 8 * square * square) % _P, 2 * y * z % _P


def _add_base(point: Point) -> Point:
    """Add the base point to ``point``, which must differ from it."""
    x, y, z = point
    if not z:
        return *_BASE, 1
    width, height = (_BASE[0] * z * z - x) % _P, (_BASE[1] * z * z * z - y) % _P
    cube, product = width**3 % _P, x * width * width % _P
    new = (height * height - cube - 2 * product) % _P
    return new, (height * (product - new) - y * cube) % _P, z * width % _P


def _der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    length = len(content).to_bytes(len(content).bit_length() // 8 + 1, "big").lstrip(b"\0") or b"\0"
    return (
        bytes([tag])
        + (length if len(content) < 128 else bytes([0x80 + len(length)]) + length)
        + content
    )


def _integer(value: int) -> bytes:
    return _der(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _pem(kind: str, content: bytes) -> str:
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n"
