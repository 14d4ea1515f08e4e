"""Tables of what there is: a row says what is known, and tests are columns made of it.

``LINKS`` has a row for each link. ``tests/links/test_every_link.py`` reads it, and ``benchmarks/kernels.py`` measures
what it says.

``METHODS`` has a row for each federated method. ``tests/algorithms/test_every_method.py`` and
``tests/test_golden.py`` read it. A method of ``thinwire.algorithms`` without a row is in every column at its
default settings, except for those that a row alone can fill: identities, hand values, refusals, literal bytes and
golden runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# -- links --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """What is known of a link beside its paper, its page and its hand values. All keys are expressions of it.

    ``laws`` are put through what every link must hold. Each says the most bytes that a packet of ``problems.LAYOUT``
    takes (352 entries, 1,408 bytes of dense data, 14 bytes and 3 of padding a layer at most for any structure), and
    what the link promises: l(inear), c(ontraction), m(emory), a(bsolute). Of some the laws have to know more: e(ach
    entry is averaged over those who sent it), h (a mean of packets decodes to the estimate of the mean, of hashes),
    s(igns alone are seen).
    ``same`` are its identities: a neutral setting, and the link whose receivers see the same bits.
    ``refused`` are settings out of range, and ``conflicts`` those that have no meaning together, with the message.
    ``bytes`` are the lengths of a packet of 1,000 entries in one layer, and in two.
    ``wire`` are the bytes of a packet of layers (3, 4) and (1, -2), ``ties`` of (3, -3) and (1, 0), in hexadecimal.
    ``floats`` is the papers' figure for 1,000 entries in two layers.
    ``lost`` bounds what a contraction of 8 entries loses: (a, b) for |x - seen|^2 <= a |x|^2 + b.
    ``unbiased`` bounds how far the mean of 10,000 packets is off for entries 1 to 20: five standard errors.
    ``measured`` are settings for 11 million entries: their bytes, times and memory are in docs/measured/links.md.
    """

    name: str
    laws: dict[str, tuple[int, str]]
    measured: tuple[str, ...]
    same: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)
    bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    wire: dict[str, str] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    floats: dict[str, float] = field(default_factory=dict)
    lost: dict[str, tuple[float, float]] = field(default_factory=dict)
    unbiased: dict[str, float] = field(default_factory=dict)


KEEPS = "needs a link that always keeps a part of what it is given (a contraction);"
GROWS = "does not say so (contraction = True in its class), and the residual would grow without bound"

SUMS = (
    "a sum is all that the server learns, and packets of this link cannot be added: take a linear one, such as "
    "Dense(), RandK(0.01), RandomBlock(64) or CountSketch(...)"
)

LINKS = [
    Link(
        "Dense",
        laws={"Dense()": (1_416, "lca")},
        bytes={
            # 1 + 4, 3 of padding, 4,000
            "Dense()": (4_008, 4_008),
        },
        wire={"Dense()": "01 480104 00004040 00008040 0000803f 000000c0"},
        floats={"Dense()": 1000.0},
        lost={"Dense()": (0.0, 0.0)},
        measured=("Dense()",),
    ),
    Link(
        "Half",
        laws={"Half()": (740, "lca")},
        bytes={"Half()": (2_008, 2_012)},
        wire={"Half()": "01 0602 460102 460102 00 0042 0044 003c 00c0"},
        floats={"Half()": 500.0},
        lost={
            # an entry may be off by half of the distance of two subnormals: 2^-25 of Half, 2^-134 of BF16
            "Half()": (2.0**-22, 8 * 2.0**-50),
        },
        measured=("Half()",),
    ),
    Link(
        "BF16",
        laws={"BF16()": (740, "lca")},
        bytes={"BF16()": (2_008, 2_012)},
        wire={"BF16()": "01 0602 470102 470102 00 4040 8040 803f 00c0"},
        lost={"BF16()": (2.0**-16, 8 * 2.0**-268)},
        measured=("BF16()",),
    ),
    Link(
        "Sparse",
        laws={"Sparse()": (1_530, "ca")},
        same={"Sparse()": "Dense()"},
        bytes={"Sparse()": (4_012, 4_020)},
        floats={"Sparse()": 1000.0},
        lost={"Sparse()": (0.0, 0.0)},
        measured=("Sparse()",),
    ),
    Link(
        "TopK",
        laws={
            "TopK(0.01)": (220, "c"),
            "TopK(0.1)": (360, "c"),
            "TopK(0.1, values=Half())": (290, "c"),
            "TopK(0.1, values=ScaledSign())": (260, "c"),
            "TopK(1.0)": (1_500, "c"),
            "TopK(0.1, sampled=True)": (360, "c"),
        },
        same={"TopK(1.0)": "Dense()"},
        refused={
            "TopK(0.0)": "TopK(share=0.0): share must be above 0 and at most 1",
            "TopK(1.01)": "TopK(share=1.01): share must be above 0 and at most 1",
        },
        bytes={
            # 18 of structure; 3 and 8 bytes of positions, 3 of padding, 40 of values
            "TopK(0.01)": (72, 88),
            "TopK(0.1)": (476, 492),
            "TopK(0.1, values=Half())": (276, 292),
            "TopK(0.1, values=ScaledSign())": (97, 123),
            "TopK(0.5)": (2_120, 2_140),
            "TopK(1.0)": (4_012, 4_020),
            "TopK(0.1, sampled=True)": (476, 492),
            "TopK(0.1, values=Int8())": (184, 208),
        },
        wire={
            "TopK(1.0)": "01 0602 060200480102 060200480102 00 00004040 00008040 0000803f 000000c0",
            # one of two: a bit each, 01 and 01
            "TopK(0.5)": "01 0602 0602410101480101 0602410101480101 02 00008040 02 000000 000000c0",
        },
        floats={
            "TopK(0.1)": 100.0,
            "TopK(0.1, values=Half())": 50.0,
            # whole bytes of signs
            "TopK(0.1, values=ScaledSign())": 1 + 80 / 32 + 1 + 24 / 32,
        },
        lost={
            "TopK(1.0)": (0.0, 0.0),
            "TopK(0.25)": (6 / 8, 0.0),
            "TopK(0.25, values=Half())": (6 / 8 + 2.0**-22, 8 * 2.0**-50),
            "TopK(0.01)": (7 / 8, 0.0),
            # 4 kept hold half of ||x||^2, the sign a quarter of that
            "TopK(0.5, values=ScaledSign())": (7 / 8, 1e-80),
            "TopK(0.5, values=Int8())": (4 / 8 + 7 / (254**2 + 7), 8e-90),
            "TopK(0.25, sampled=True)": (6 / 8, 0.0),
        },
        measured=("TopK(0.01)", "TopK(0.1)", "TopK(0.01, values=Half())", "TopK(0.01, sampled=True)"),
    ),
    Link(
        "RandK",
        laws={
            "RandK(0.1)": (190, "lc"),
            "RandK(0.1, unbiased=True)": (190, "l"),
        },
        same={"RandK(1.0)": "Dense()"},
        refused={"RandK(-1.0)": "RandK(share=-1.0): share must be above 0 and at most 1"},
        bytes={
            "RandK(0.01)": (48, 52),
            "RandK(0.1)": (408, 412),
            "RandK(0.1, unbiased=True)": (408, 412),
        },
        floats={"RandK(0.1)": 100.0},
        lost={
            # for one draw; 1/2 on average
            "RandK(0.5)": (1.0, 0.0),
        },
        measured=("RandK(0.01)",),
    ),
    Link(
        "RandomBlock",
        laws={
            "RandomBlock(10.0)": (190, "lc"),
            "RandomBlock(10.0, unbiased=True)": (190, "l"),
        },
        same={"RandomBlock(1.0)": "Dense()"},
        refused={
            "RandomBlock(0.5)": "RandomBlock(ratio=0.5): ratio must be at least 1 and finite",
            "RandomBlock(1e999)": "RandomBlock(ratio=inf): ratio must be at least 1 and finite",
        },
        bytes={
            "RandomBlock(10.0)": (408, 412),
            # 15 of a thousand; 12 and 3 of the two layers
            "RandomBlock(64.0)": (68, 72),
        },
        floats={"RandomBlock(10.0)": 100.0},
        lost={
            # for one draw; 1/2 on average
            "RandomBlock(2.0)": (1.0, 0.0),
        },
        measured=("RandomBlock(64)",),
    ),
    Link(
        "STC",
        laws={"STC(0.1)": (230, "c")},
        same={"STC(0.1)": "TopK(0.1, values=ScaledSign())"},
        refused={"STC(0.0)": "STC(share=0.0): share must be above 0 and at most 1"},
        bytes={
            # 17, 3 of padding, 4 of magnitude, 13 of signs, 15 of quotients, 38 of rests
            "STC(0.1)": (90, 111),
        },
        ties={
            # both of two, which are alike: the mean, how many, and a byte of places and signs; of one and zero the one
            "STC(0.5)": "01 0602 06034800 0304 410101 06034800 0302 410101 000000 00004040 c4 000000 0000803f a0",
        },
        floats={
            # 20 signs in three bytes
            "STC(0.1)": 1 + 80 / 32 + 1 + 24 / 32,
        },
        lost={
            # as many as equal the second: at most all, and those lose what their signs do
            "STC(0.25)": (7 / 8, 1e-80),
            "STC(1.0)": (7 / 8, 1e-80),
        },
        measured=("STC(0.01)",),
    ),
    Link(
        "DropoutAvg",
        laws={"DropoutAvg(0.5)": (860, "le")},
        same={"DropoutAvg(0.0)": "Dense()"},
        refused={
            "DropoutAvg(1.0)": "DropoutAvg(drop=1.0): drop must be at least 0 and below 1",
            "DropoutAvg(-0.1)": "DropoutAvg(drop=-0.1): drop must be at least 0 and below 1",
        },
        bytes={
            # 12, 125 of bits, 3 of padding, 2,000 of values
            "DropoutAvg(0.5)": (2_140, 2_152),
            "DropoutAvg(0.2)": (3_340, 3_352),
        },
        ties={
            "DropoutAvg(0.0)": (
                "01 0602 0602400102480102 0602400102480102 03 00004040 000040c0 03 000000 0000803f 00000000"
            ),
        },
        floats={"DropoutAvg(0.2)": 800.0},
        measured=("DropoutAvg(0.5)",),
    ),
    Link(
        "SecureSum",
        laws={
            "SecureSum(bits=16, clip=4.0)": (1_160, "l"),
            "SecureSum(RandK(0.1), bits=16, clip=4.0)": (130, "l"),
            "SecureSum(RandomBlock(10.0), bits=24, clip=8.0, most=64)": (144, "l"),
            "SecureSum(Flat(Projection(40)), bits=16, clip=32.0)": (140, "l"),
            "SecureSum(Half(), bits=20, clip=4.0, most=30)": (1_110, "l"),
        },
        refused={
            "SecureSum(bits=1)": "SecureSum(bits=1): bits must be from 2 to 32",
            "SecureSum(clip=0.0)": "SecureSum(clip=0.0): clip must be positive",
            "SecureSum(bits=32, most=10000000000)": (
                "SecureSum(bits=32, most=10000000000): a sum has 66 bits, and must have at most 62"
            ),
            "SecureSum(neighbours=4, threshold=5)": (
                "SecureSum(neighbours=4, threshold=5): no more can answer than there are neighbours"
            ),
        },
        conflicts={
            "SecureSum(TopK(0.1))": f"SecureSum(TopK(0.1)): {SUMS}",
            "SecureSum(LBGM(threshold=0.5))": f"SecureSum(LBGM(threshold=0.5)): {SUMS}",
            "SecureSum(Layerwise(DropoutAvg(0.5)))": f"SecureSum(Layerwise(DropoutAvg(0.5))): {SUMS}",
            "SecureSum(Layerwise(SecureSum()))": f"SecureSum(Layerwise(SecureSum(bits=16))): {SUMS}",
            "ErrorFeedback(SecureSum())": f"ErrorFeedback {KEEPS} SecureSum(bits=16) {GROWS}",
        },
        bytes={
            # 26 bits a number: 3,250, and 5 of header
            "SecureSum()": (3_255, 3_255),
            "SecureSum(RandK(0.1))": (330, 330),
        },
        wire={"SecureSum(bits=8, clip=128.0, most=1)": "01 410104 03 04 01 fe"},
        floats={"SecureSum()": 500.0},
        unbiased={"SecureSum(bits=4, clip=24.0)": 0.08},
        measured=("SecureSum(RandK(0.01))",),
    ),
    Link(
        "SignSGD",
        laws={"SignSGD()": (100, "s")},
        bytes={
            # 6, 125 of signs
            "SignSGD()": (131, 134),
        },
        ties={"SignSGD()": "01 0602 410101 410101 01 03"},
        floats={"SignSGD()": 25 + 6.25},
        measured=("SignSGD()",),
    ),
    Link(
        "ScaledSign",
        laws={"ScaledSign()": (160, "c")},
        bytes={
            # 11, 1 of padding, 4 of scale, 125 of signs
            "ScaledSign()": (141, 153),
        },
        wire={
            # scales 3.5 and 1.5, signs 11 and 10
            "ScaledSign()": "01 0602 06024800410101 06024800410101 000000 00006040 03 000000 0000c03f 01",
        },
        floats={"ScaledSign()": 1 + 800 / 32 + 1 + 200 / 32},
        lost={
            # the mean of subnormals is rounded
            "ScaledSign()": (7 / 8, 1e-80),
        },
        measured=("ScaledSign()",),
    ),
    Link(
        "QSGD",
        laws={
            "QSGD(16)": (450, ""),
            "QSGD(1)": (200, ""),
            "QSGD(7, norm='max')": (280, ""),
            "QSGD(3, bucket=50)": (300, ""),
        },
        refused={
            "QSGD(0)": "QSGD(levels=0): levels must be from 1 to 127",
            "QSGD(128)": "QSGD(levels=128): levels must be from 1 to 127",
            "QSGD(bucket=0)": "QSGD(bucket=0): bucket must be at least 1",
        },
        bytes={
            # of a fixed width 266, 516, 1,016, 1,052 and 576: by the adaptive coder
            "QSGD(1)": (38, 63),
            "QSGD(7)": (126, 176),
            "QSGD(16)": (197, 244),
            "QSGD(16, bucket=100)": (379, 371),
            "QSGD(3, bucket=64, norm='max')": (411, 400),
        },
        ties={
            # +-3 of 3 are 2 and 0, +1 and 0 of 1 are 2 and 1, two bits each
            "QSGD(1, norm='max')": "01 0602 0602480101410101 0602480101410101 00 00004040 02 000000 0000803f 06",
            "QSGD(1, bucket=2, norm='max')": (
                "01 0602 0602480101410101 0602480101410101 00 00004040 02 000000 0000803f 06"
            ),
        },
        floats={
            "QSGD(16)": 1 + 154 / 4 + 1 + 60 / 4,  # levels as they are coded
            "QSGD(7, bucket=100)": 8 + 162 / 4 + 2 + 45 / 4,
        },
        unbiased={
            "QSGD(127)": 0.025 * 53.6 * 500**0.5 / 127,
            "QSGD(7, norm='max')": 0.025 * 20 / 7,
            "QSGD(4, bucket=20)": 0.025 * 53.6 / 4,
        },
        measured=("QSGD(16)", "QSGD(16, bucket=512)"),
    ),
    Link(
        "Int8",
        laws={"Int8()": (450, "c")},
        bytes={"Int8()": (1_016, 1_028)},
        ties={"Int8()": "01 0602 06024800420102 06024800420102 000000 00004040 7f81 0000 0000803f 7f00"},
        floats={"Int8()": 1 + 200 + 1 + 50},
        lost={
            # The largest is exact; of the others each loses most when it is half a step, a 254th of the largest.
            "Int8()": (7 / (254**2 + 7), 8e-90),
        },
        measured=("Int8()",),
    ),
    Link(
        "Ternary",
        laws={"Ternary()": (180, "")},
        same={"Ternary()": "QSGD(1, norm='max')"},
        bytes={
            # five digits a byte are (216, 228)
            "Ternary()": (204, 224),
        },
        ties={"Ternary()": "01 0602 06024800410101 06024800410101 000000 00004040 02 000000 0000803f 05"},
        floats={"Ternary()": 1 + 153 / 4 + 1 + 40 / 4},
        unbiased={"Ternary()": 0.025 * 20},
        measured=("Ternary()",),
    ),
    Link(
        "Bins",
        laws={"Bins(4)": (300, "c"), "Bins(256)": (8_000, "c")},
        refused={
            "Bins(1)": "Bins(levels=1): levels must be from 2 to 256",
            "Bins(257)": "Bins(levels=257): levels must be from 2 to 256",
        },
        lost={"Bins(4)": (1.0, 0.0)},
        measured=("Bins(4)",),
    ),
    Link(
        "DCT",
        laws={
            "DCT(Dense(), chunk=4)": (1_500, "lca"),
            "DCT(ChunkTopK(4, chunk=4), chunk=64)": (700, "c"),
            "DCT(ErrorFeedback(TopK(0.1)), chunk=64)": (500, ""),
        },
        same={"DCT(Half(), chunk=1)": "Half()"},
        refused={"DCT(Dense(), chunk=0)": "DCT(chunk=0): chunk must be at least 1"},
        lost={"DCT(ChunkTopK(2, chunk=2), chunk=2)": (0.5 + 1e-6, 1e-30)},
        measured=("DCT(ChunkTopK(32))",),
    ),
    Link(
        "ChunkTopK",
        laws={
            "ChunkTopK(4, chunk=4)": (700, "c"),
            "ChunkTopK(2, chunk=3, values=Bins(4))": (300, "c"),
            "ChunkTopK(1, chunk=8, rows=True)": (300, "c"),
        },
        same={"ChunkTopK(16, chunk=4)": "Dense()", "ChunkTopK(4, chunk=4, rows=True)": "Dense()"},
        refused={
            "ChunkTopK(0)": "ChunkTopK(k=0): k must be at least 1",
            "ChunkTopK(1, chunk=0)": "ChunkTopK(chunk=0): chunk must be at least 1",
            "ChunkTopK(5, chunk=2)": "ChunkTopK(5, chunk=2): a chunk has 4 entries, and k is at most that",
            "ChunkTopK(5, chunk=4, rows=True)": (
                "ChunkTopK(5, chunk=4, rows=True): a chunk has 4 entries, and k is at most that"
            ),
        },
        lost={"ChunkTopK(2, chunk=2)": (0.5, 0.0)},
        measured=("ChunkTopK(64)", "ChunkTopK(64, values=Bins(4))"),
    ),
    Link(
        "LowRank",
        laws={
            "LowRank(1)": (310, "c"),
            "LowRank(3)": (712, "c"),
        },
        same={"LowRank(10)": "Dense()"},
        refused={
            "LowRank(0)": "LowRank(rank=0): rank must be at least 1",
            "LowRank(-3)": "LowRank(rank=-3): rank must be at least 1",
        },
        bytes={
            # a vector is sent whole; 2 (20 + 40) + 200 floats
            "LowRank(2)": (4_008, 1_292),
        },
        measured=("LowRank(2)",),
    ),
    Link(
        "ATOMO",
        laws={
            "ATOMO(1)": (1_450, ""),
            "ATOMO(3)": (1_450, ""),
        },
        same={"ATOMO(10)": "Dense()"},
        refused={
            "ATOMO(0)": "ATOMO(rank=0): rank must be at least 1",
            "ATOMO(-3)": "ATOMO(rank=-3): rank must be at least 1",
        },
        measured=("ATOMO(2)",),
    ),
    Link(
        "PowerSGD",
        laws={
            "PowerSGD(1)": (310, ""),
            "PowerSGD(2, warm=False)": (520, ""),
        },
        same={"PowerSGD(10)": "Dense()"},
        refused={
            "PowerSGD(0)": "PowerSGD(rank=0): rank must be at least 1",
            "PowerSGD(-3)": "PowerSGD(rank=-3): rank must be at least 1",
        },
        bytes={"PowerSGD(2)": (4_008, 1_292)},
        measured=("PowerSGD(2)",),
    ),
    Link(
        "TransformCoding",
        laws={"TransformCoding(120)": (120, "c"), "TransformCoding(share=0.9)": (1_420, "c")},
        same={"TransformCoding(1500)": "Dense()"},
        refused={
            "TransformCoding()": (
                "TransformCoding(): give one of bytes, rate (bits an entry) and share (of the squared length)"
            ),
            "TransformCoding(900, share=0.5)": (
                "TransformCoding(900, share=0.5): give one of bytes, rate (bits an entry) and share (of the squared "
                "length)"
            ),
            "TransformCoding(0)": "TransformCoding(0): bytes must be positive",
            "TransformCoding(rate=0.0)": "TransformCoding(rate=0.0): rate must be above 0 and at most 64 bits an entry",
            "TransformCoding(share=1.0)": "TransformCoding(share=1.0): share must be above 0 and below 1",
        },
        wire={
            # the numbers take no more than 20 bytes
            "TransformCoding(20)": "01 480104 00004040 00008040 0000803f 000000c0",
        },
        lost={
            # no worse than the largest of eight alone
            "TransformCoding(30)": (7 / 8, 1e-80),
        },
        measured=("TransformCoding(100000)",),
    ),
    Link(
        "CountSketch",
        laws={
            "CountSketch(1, cols=20)": (248, "l"),
            "CountSketch(3, cols=20)": (490, "lh"),
            "CountSketch(4, cols=9, fixed=True)": (392, "lh"),
        },
        same={"CountSketch(1, cols=352)": "Dense()"},
        refused={
            "CountSketch(0, 5)": "CountSketch(rows=0): rows must be 1 to 64",
            "CountSketch(65, 5)": "CountSketch(rows=65): rows must be 1 to 64",
            "CountSketch(5, 0)": "CountSketch(cols=0): cols must be at least 1",
            "CountSketch(5, -1)": "CountSketch(cols=-1): cols must be at least 1",
        },
        bytes={"CountSketch(5, cols=20)": (408, 812)},
        measured=("Flat(CountSketch(5, 100000))",),
    ),
    Link(
        "Projection",
        laws={
            "Projection(8)": (150, "l"),
            "Projection(40, fixed=True)": (430, "l"),
        },
        same={"Projection(352)": "Dense()"},
        refused={
            "Projection(0)": "Projection(dim=0): dim must be positive",
            "Projection(-3)": "Projection(dim=-3): dim must be positive",
        },
        bytes={"Projection(250)": (1_008, 1_812)},
        measured=("Projection(16384)",),
    ),
    Link(
        "Flat",
        laws={
            "Flat(TopK(0.1))": (190, "c"),
            "Flat(RandK(0.1))": (148, "lc"),
            "Flat(ScaledSign())": (60, "c"),
            "Flat(Half())": (710, "lca"),
            "Flat(Projection(40))": (164, "l"),
            "Flat(SignSGD())": (49, "s"),
            "Flat(QSGD(127, bucket=64, norm='max'))": (390, ""),
            "Flat(RandomBlock(2.5))": (572, "lc"),
            "Flat(STC(0.1))": (110, "c"),
            "Flat(DropoutAvg(0.2))": (1_190, "le"),
            "Flat(CountSketch(1, cols=50))": (208, "l"),
            "Flat(CountSketch(5, cols=20))": (408, "lh"),
        },
        same={
            "Flat(Dense())": "Dense()",
            "Flat(SignSGD())": "SignSGD()",
        },
        bytes={
            "Flat(TopK(0.1))": (476, 476),
            "Flat(ScaledSign())": (137, 137),
            "Flat(Projection(250))": (1_008, 1_008),
            "Flat(SignSGD())": (129, 129),
            "Flat(STC(0.1))": (90, 90),
            "Flat(CountSketch(5, cols=20))": (404, 404),
        },
        wire={
            "Flat(TopK(1.0))": "01 0602 00 480104 00 00004040 00008040 0000803f 000000c0",
            # gaps 0 and 0 with b = 0: two ones, no rests
            "Flat(TopK(0.5))": "01 0602 0603 0300 410101 410100 480102 03 000000 00004040 00008040",
            "Flat(ScaledSign())": "01 0602 4800 410101 00002040 07",
        },
        ties={
            "Flat(SignSGD())": "01 410101 0d",
            "Flat(QSGD(1, bucket=2, norm='max'))": "01 0602 480102 410101 000000 00004040 0000803f 62",
            "Flat(Int8())": "01 0602 4800 420104 00004040 7f812a00",
            # the first two of four
            "Flat(STC(0.5))": "01 0603 4800 0304 410101 0000 00004040 cb",
        },
        floats={"Flat(ScaledSign())": 1 + 1000 / 32},
        lost={
            "Flat(TopK(0.25))": (6 / 8, 0.0),
            "Flat(Int8())": (7 / (254**2 + 7), 8e-90),
        },
        unbiased={"Flat(QSGD(1, bucket=100, norm='max'))": 0.025 * 20},
        measured=("Flat(TopK(0.01))", "Flat(Projection(16384))"),
    ),
    Link(
        "ErrorFeedback",
        laws={
            "ErrorFeedback(TopK(0.1))": (360, ""),
            "ErrorFeedback(RandK(0.1))": (190, "l"),
            "ErrorFeedback(ScaledSign())": (160, ""),
            "ErrorFeedback(Half())": (740, "l"),
            "ErrorFeedback(Dense())": (1_416, "l"),
            "ErrorFeedback(Flat(TopK(0.1, values=BF16())))": (120, ""),
            "ErrorFeedback(LBGM(TopK(0.1), threshold=0.9, compare='dense'))": (370, "m"),
            "ErrorFeedback(Budget(500, ladder=(TopK(0.01), ScaledSign(), Int8())))": (500, ""),
            "ErrorFeedback(ByBandwidth({'1': Dense(), '0': TopK(0.1)}))": (1_440, ""),
            "ErrorFeedback(Int8())": (450, ""),
            "ErrorFeedback(RandomBlock(10.0))": (190, "l"),
            "ErrorFeedback(TopK(0.1, values=Int8(), sampled=True))": (300, ""),
            "ErrorFeedback(STC(0.1))": (230, ""),
            "ErrorFeedback(Entropy(TopK(0.1)))": (370, ""),
            "ErrorFeedback(LowRank(2))": (520, ""),
        },
        same={"ErrorFeedback(Dense())": "Dense()"},
        conflicts={
            "ErrorFeedback(RandK(0.1, unbiased=True))": f"ErrorFeedback {KEEPS} RandK(0.1, unbiased=True) {GROWS}",
            "ErrorFeedback(EF21(TopK(0.1)))": f"ErrorFeedback {KEEPS} EF21() {GROWS}",
            "ErrorFeedback(LBGM(threshold=1.0))": f"ErrorFeedback {KEEPS} LBGM(threshold=1.0) {GROWS}",
            "ErrorFeedback(LBGM(TopK(0.1), threshold=0.5))": (
                f"ErrorFeedback {KEEPS} LBGM(TopK(0.1), threshold=0.5) {GROWS}"
            ),
            "ErrorFeedback(Partition({'b': Dense(), '*': RandK(0.1, unbiased=True)}))": (
                f"ErrorFeedback {KEEPS} Partition({{'b': Dense(), '*': RandK(0.1, unbiased=True)}}) {GROWS}"
            ),
        },
        bytes={
            "ErrorFeedback(TopK(0.1))": (476, 492),
            "ErrorFeedback(LowRank(3))": (4_008, 1_532),
        },
        floats={"ErrorFeedback(ScaledSign())": 33.25},
        measured=("ErrorFeedback(TopK(0.01))", "ErrorFeedback(ScaledSign())"),
    ),
    Link(
        "EF21",
        laws={
            "EF21()": (360, "ma"),
            "EF21(ScaledSign())": (160, "ma"),
            "EF21(RandK(0.1))": (190, "ma"),
            "EF21(Int8())": (450, "ma"),
            "EF21(STC(0.1))": (230, "ma"),
            "EF21(LowRank(1))": (310, "ma"),
        },
        conflicts={
            "EF21(RandK(0.1, unbiased=True))": f"EF21 {KEEPS} RandK(0.1, unbiased=True) {GROWS}",
            "EF21(LBGM())": "EF21 keeps the receiver's memory itself: LBGM(threshold=0.2) has one of its own",
        },
        bytes={"EF21()": (476, 492)},
        floats={"EF21()": 100.0},
        measured=("EF21(TopK(0.01))",),
    ),
    Link(
        "PerClient",
        laws={
            "PerClient()": (362, "ma"),
            "PerClient(Dense())": (1_416, "ma"),
            "PerClient(TransformCoding(120))": (122, "ma"),
            "PerClient(LowRank(1), auto=True)": (312, "ma"),
        },
        same={"PerClient(Dense())": "Dense()", "PerClient(TransformCoding(1500))": "Dense()"},
        conflicts={
            "PerClient(RandK(0.1, unbiased=True))": (
                "PerClient needs a link that always keeps a part of what it is given (a contraction); "
                "RandK(0.1, unbiased=True) does not say so (contraction = True in its class), and what a client holds "
                "would not come nearer"
            ),
            "PerClient(PerClient())": "PerClient goes around other links, not into them: PerClient() is one already",
            "PerClient(EF21())": (
                "PerClient needs a link that always keeps a part of what it is given (a contraction); EF21() does not "
                "say so (contraction = True in its class), and what a client holds would not come nearer"
            ),
            "PerClient(LBGM(compare='dense'))": (
                "PerClient keeps the receiver's memory itself: LBGM(threshold=0.2, compare='dense') has one of its own"
            ),
        },
        bytes={
            # a list of one around a packet of TopK; dense numbers as they are
            "PerClient()": (480, 496),
            "PerClient(Dense())": (4_008, 4_008),
        },
        wire={"PerClient(Dense())": "01 480104 00004040 00008040 0000803f 000000c0"},
        floats={"PerClient()": 100.0, "PerClient(Dense())": 1000.0},
        measured=("PerClient(TopK(0.01))",),
    ),
    Link(
        "LBGM",
        laws={
            "LBGM(threshold=0.2)": (1_420, "cm"),
            "LBGM(threshold=1.0)": (1_420, "m"),
            "LBGM(TopK(0.1), threshold=0.4)": (370, "m"),
            "LBGM(threshold=0.9, delta=0.5)": (1_420, "cm"),
            "LBGM(ErrorFeedback(TopK(0.1)), threshold=0.8)": (370, "m"),
            "LBGM(RandK(0.5, unbiased=True), threshold=0.9)": (900, "m"),
            "LBGM(Partition({'*.bias': Dense(), '*': ErrorFeedback(TopK(0.1))}), threshold=0.5)": (400, "m"),
            "LBGM(threshold=0.2, compare='dense', store='packet')": (1_420, "cm"),
            "LBGM(Half(), threshold=0.3, compare='dense', store='packet')": (750, "cm"),
            "LBGM(TopK(0.1), threshold=0.8, compare='dense', store='packet')": (370, "cm"),
            "LBGM(ErrorFeedback(TopK(0.1)), threshold=0.9, compare='dense')": (370, "m"),
            "LBGM(ScaledSign(), threshold=0.5, store='packet')": (170, "m"),
            "LBGM(RandK(0.5), threshold=0.7, store='packet')": (900, "m"),
            "LBGM(Sparse(), threshold=0.4, compare='dense')": (1_540, "cm"),
            "LBGM(Flat(TopK(0.1)), threshold=0.9, compare='dense', store='packet')": (200, "cm"),
            "LBGM(Flat(Projection(40)), threshold=0.9, store='packet')": (170, "m"),
            "LBGM(Layerwise(ErrorFeedback(ScaledSign())), threshold=0.9, compare='dense', store='packet')": (190, "m"),
            "LBGM(Budget(396, ladder=(TopK(0.01), Half())), threshold=0.8, compare='dense', store='packet')": (
                400,
                "cm",
            ),
            "LBGM(ByBandwidth({'1': TopK(0.1), '0': ErrorFeedback(ScaledSign())}), threshold=0.8)": (390, "m"),
            "LBGM(Projection(8), threshold=0.5)": (160, "m"),
            "LBGM(SignSGD(), threshold=0.9)": (110, "ms"),
            "LBGM(LowRank(2), threshold=0.4)": (520, "m"),
            "LBGM(PowerSGD(2), threshold=0.4)": (520, "m"),
        },
        same={
            "LBGM(threshold=0.0)": "Dense()",
            "LBGM(TopK(0.1), threshold=0.0)": "TopK(0.1)",
        },
        refused={
            "LBGM(threshold=1.5)": "LBGM(threshold=1.5): threshold is a squared sine, 0 to 1",
            "LBGM(threshold=-0.1)": "LBGM(threshold=-0.1): threshold is a squared sine, 0 to 1",
        },
        conflicts={
            "LBGM(EF21(TopK(0.2)))": "LBGM needs an inner link whose receiver has no memory; EF21(TopK(0.2)) has one",
            "LBGM(Layerwise(LBGM()))": (
                "LBGM needs an inner link whose receiver has no memory; Layerwise(LBGM(threshold=0.2)) has one"
            ),
            "LBGM(ErrorFeedback(LBGM()))": (
                "LBGM needs an inner link whose receiver has no memory; ErrorFeedback(LBGM(threshold=0.2)) has one"
            ),
        },
        bytes={
            # a list of one around the tensor takes of the padding
            "LBGM(threshold=0.2)": (4_008, 4_008),
            "LBGM(TopK(0.1), threshold=0.2)": (480, 496),
        },
        wire={
            "LBGM(threshold=0.2)": "01 0601 480104 0000 00004040 00008040 0000803f 000000c0",
            "LBGM(Layerwise(Dense()), threshold=0.2)": (
                "01 0601 0602480102480102 00 00004040 00008040 0000803f 000000c0"
            ),
        },
        floats={
            "LBGM(threshold=0.2)": 1000.0,
            "LBGM(ScaledSign(), threshold=0.2)": 33.25,
        },
        lost={"LBGM(TopK(0.25), threshold=0.2, compare='dense')": (6 / 8, 0.0)},
        measured=("LBGM(threshold=0.2)", "LBGM(TopK(0.1), store='packet')"),
    ),
    Link(
        "Entropy",
        laws={
            "Entropy(Dense())": (1_424, "ca"),
            "Entropy(QSGD(16))": (450, ""),
            "Entropy(ErrorFeedback(Flat(Int8())))": (380, ""),
            "Entropy(EF21(STC(0.1)))": (240, "ma"),
        },
        same={"Entropy(TopK(0.1))": "TopK(0.1)"},
        floats={"Entropy(Int8())": 252.0},
        lost={"Entropy(STC(0.25))": (7 / 8, 1e-80)},
        measured=("Entropy(QSGD(16))",),
    ),
    Link(
        "Budget",
        laws={
            "Budget(400)": (400, "c"),
            "Budget(900, ladder=(Half(), Dense()))": (900, "ca"),
        },
        same={"Budget(1700, ladder=(Dense(),))": "Dense()"},
        refused={
            "Budget(0)": "Budget(bytes=0): bytes must be positive",
            "Budget(9, ladder=())": "Budget(ladder=...): 0 codecs; it takes 1 to 256",
        },
        bytes={
            # a scaled sign; of 800 and 200 entries the larger so, the smaller a byte each
            "Budget(500)": (145, 336),
        },
        lost={"Budget(40, ladder=(TopK(0.01), TopK(0.25)))": (7 / 8, 0.0)},
        measured=("Budget(1000000)",),
    ),
    Link(
        "Switch",
        laws={
            "Switch(TransformCoding(90), then=TransformCoding(120), rounds=1)": (120, "c"),
            "Switch(Half(), then=Half(), rounds=2)": (740, "ca"),
            "Switch(Flat(TopK(0.1)), then=Flat(TopK(0.2)), rounds=1)": (400, "c"),
            "Switch(SignSGD(), then=SignSGD(), rounds=1)": (90, "s"),
        },
        same={"Switch(Dense(), then=Dense(), rounds=3)": "Dense()"},
        refused={
            "Switch(TopK(0.1), then=TopK(0.2), rounds=0)": "Switch(rounds=0): rounds is a number of rounds, 1 or more"
        },
        conflicts={
            "Switch(TopK(0.1), then=RandK(0.1), rounds=3)": (
                "Switch(TopK(0.1), RandK(0.1)): both must be links of one kind, such as TopK(0.01) and TopK(0.02), and "
                "so must the links that they hold"
            ),
            "Switch(Flat(TopK(0.1)), then=Flat(Half()), rounds=3)": (
                "Switch(Flat(TopK(0.1)), Flat(Half())): both must be links of one kind, such as TopK(0.01) and "
                "TopK(0.02), and so must the links that they hold"
            ),
            "Switch(TopK(0.1), then=TopK(0.1, values=Half()), rounds=3)": (
                "Switch(TopK(0.1), TopK(0.1, values=Half())): both must be links of one kind, such as TopK(0.01) and "
                "TopK(0.02), and so must the links that they hold"
            ),
            "Switch(LBGM(threshold=0.2), then=LBGM(threshold=0.3), rounds=3)": (
                "Switch(LBGM(threshold=0.2), ...): LBGM keeps a state between messages, which the other would have to "
                "take over; put it around: ErrorFeedback(Switch(...))"
            ),
        },
        bytes={"Switch(TopK(0.1), then=TopK(0.2), rounds=1)": (476, 492)},
        wire={
            # round 1 is one of the first
            "Switch(TransformCoding(20), then=TransformCoding(8), rounds=1)": (
                "01 480104 00004040 00008040 0000803f 000000c0"
            ),
        },
        floats={"Switch(ScaledSign(), then=ScaledSign(), rounds=1)": 33.25},
        lost={"Switch(TopK(0.25), then=TopK(0.5), rounds=1)": (6 / 8, 0.0)},
        measured=("Switch(TopK(0.01), then=TopK(0.02), rounds=10)",),
    ),
    Link(
        "Layerwise",
        laws={
            "Layerwise(LBGM(threshold=0.2))": (1_530, "cm"),
            "Layerwise(LBGM(TopK(0.1), threshold=0.9, compare='dense', store='packet'))": (400, "cm"),
            "Layerwise(LBGM(ErrorFeedback(TopK(0.1)), threshold=0.6))": (400, "m"),
            "Layerwise(ErrorFeedback(TopK(0.1)))": (380, ""),
            "Layerwise(EF21(ScaledSign()))": (190, "ma"),
            "Layerwise(Dense())": (1_480, "lca"),
            "Layerwise(DropoutAvg(0.9))": (300, "le"),
            "Layerwise(Entropy(LBGM(threshold=0.2)))": (1_540, "cm"),
            "Layerwise(LBGM(ATOMO(2), threshold=0.6))": (1_460, "m"),
        },
        same={"Layerwise(Dense())": "Dense()"},
        bytes={
            "Layerwise(LBGM(threshold=0.2))": (4_012, 4_016),
            "Layerwise(ErrorFeedback(TopK(0.1)))": (480, 496),
        },
        wire={
            "Layerwise(Dense())": "01 0602 480102 480102 000000 00004040 00008040 0000803f 000000c0",
            "Layerwise(LBGM(threshold=0.2))": (
                "01 0602 0601480102 0601480102 000000 00004040 00008040 0000803f 000000c0"
            ),
        },
        ties={"Layerwise(SignSGD())": "01 0602 0601 410101 0601 410101 01 03"},
        floats={"Layerwise(ScaledSign())": 33.25},
        lost={"Layerwise(TopK(0.25))": (6 / 8, 0.0)},
        measured=("Layerwise(TopK(0.01))",),
    ),
    Link(
        "Partition",
        laws={
            "Partition({'*.bias': Dense(), '*': ErrorFeedback(TopK(0.1))})": (390, ""),
            "Partition({'*.bias': Half(), 'fc.*': RandK(0.1), '*': Dense()})": (340, "lc"),
            "Partition({'conv.*': LBGM(threshold=0.2), 'fc.*': EF21(), 'none.*': Dense(), '*': ScaledSign()})": (
                480,
                "m",
            ),
            "Partition({'*': Flat(TopK(0.1))})": (190, "c"),
            "Partition({'<50': Dense(), '*': DropoutAvg(0.0)})": (1_470, "le"),
            "Partition({'>=36': Entropy(Ternary()), '*': Dense()})": (200, ""),
        },
        same={"Partition({'*': Dense()})": "Dense()"},
        refused={
            "Partition({'>1e3': Dense(), '*': Dense()})": (
                'Partition({\'>1e3\': ...}): a size is written such as "<1000" or ">=1000"'
            ),
            "Partition({})": 'Partition needs at least one rule, such as {"*": Dense()}',
        },
        bytes={
            "Partition({'b': Dense(), '*': TopK(0.1)})": (480, 1_192),
            "Partition({'<500': Dense(), '>=500': Ternary()})": (210, 979),
        },
        wire={
            "Partition({'*': Dense()})": "01 0601 480104 0000 00004040 00008040 0000803f 000000c0",
            "Partition({'a': Dense(), '*': Dense()})": (
                "01 0602 480102 480102 000000 00004040 00008040 0000803f 000000c0"
            ),
        },
        floats={"Partition({'b': Dense(), 'none': Dense(), '*': ScaledSign()})": 200 + 1 + 25},
        lost={"Partition({'a': ScaledSign()})": (7 / 8, 1e-80)},
        measured=("Partition({'<1000': Dense(), '*': TopK(0.01)})",),
    ),
    Link(
        "ByBandwidth",
        laws={
            "ByBandwidth({'1': Half(), '0.1': TopK(0.1), '0': ScaledSign()})": (760, "c"),
            "ByBandwidth({'*': ErrorFeedback(TopK(0.1)), '10': LBGM(TopK(0.1), threshold=0.5)})": (390, "m"),
        },
        same={"ByBandwidth({'*': TopK(0.1)})": "TopK(0.1)"},
        refused={
            "ByBandwidth({})": 'ByBandwidth needs a link for each rate, such as {"1": Half(), "*": TopK(0.01)}',
            "ByBandwidth({'fast': Dense()})": (
                'ByBandwidth({\'fast\': ...}): a rate in Mbit/s is written such as "1" or "0.5", any rate as "*"'
            ),
            "ByBandwidth({'-1': Dense()})": (
                'ByBandwidth({\'-1\': ...}): a rate in Mbit/s is written such as "1" or "0.5", any rate as "*"'
            ),
            "ByBandwidth({'1e3': Dense()})": (
                'ByBandwidth({\'1e3\': ...}): a rate in Mbit/s is written such as "1" or "0.5", any rate as "*"'
            ),
            "ByBandwidth({'1': Dense(), '1.0': Half()})": (
                "ByBandwidth({'1': Dense(), '1.0': Half()}): the same rate is there twice"
            ),
        },
        measured=("ByBandwidth({'*': TopK(0.01)})",),
    ),
]


# -- federated methods --------------------------------------------------------------------------

PLAIN = "LocalSGD(0.1, batch=16)"
HEAVY = "LocalSGD(0.1, batch=16, momentum=0.6)"
GOLD = "LocalSGD(lr=0.2, batch=16)"
ONCE = "LocalSGD(0.1, batch=None, steps=1)"
TWICE = "LocalSGD(0.1, batch=None, steps=2)"
TWICE_HEAVY = "LocalSGD(0.1, batch=None, steps=2, momentum=0.6)"
LOSSY = "ErrorFeedback(TopK(0.1))"


@dataclass(frozen=True)
class Method:
    """What is known of a method beside its paper, its page and its hand values.

    ``trained`` are expressions of it. Each is trained, typed back, resumed in another process, caught up with by
    clients that were away, and watched for tensors that someone writes into. What an expression leaves open of its
    local training is lr=0.5, batch=8, epochs=2.
    ``same`` are its identities: a title, the method at a neutral setting, and its parent. Both give the same bits. What
    these and all further expressions leave open is lr=0.1, batch=16.
    ``by_hand`` are models after each round on the two quadratics of ``problems.PAIR``, as the scripts below print them.
    ``refused`` are settings that have no meaning, and the whole message ("..." stands for any text).
    ``payload`` is what every client sends and is sent in every round where all take part: bytes of messages of the
    910 parameters of ``problems.mlp``.
    ``golden`` are runs whose numbers are recorded in ``tests/golden``, by the name of their file.
    """

    name: str
    trained: tuple[str, ...]
    same: dict[str, tuple[str, str]] = field(default_factory=dict)
    by_hand: dict[str, list[list[float]]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    payload: dict[str, tuple[int, int]] = field(default_factory=dict)
    golden: dict[str, str] = field(default_factory=dict)


SERVERS = ("SGD(1.0)", "Adam(0.03)", "Yogi(0.03)", "Momentum(1.0, beta=0.9)", "Nesterov(0.7, momentum=0.9)")
RECYCLED = [  # what LUAR goes around
    *(
        f"FedAvg({PLAIN}, opt={opt}, up={up}, weights={weights!r})"
        for opt in SERVERS
        for up in ("Dense()", LOSSY)
        for weights in ("examples", "uniform")
    ),
    *(
        f"SCAFFOLD({PLAIN}, up={up}, weights={weights!r})"
        for up in ("Dense()", LOSSY)
        for weights in ("examples", "uniform")
    ),
    f"SCAFFOLD({PLAIN}, option='I')",
    f"FedProx({PLAIN}, mu=0.3)",
    f"MOON({PLAIN}, mu=0.5)",
    f"FedNTD({PLAIN})",
    f"FedMut({PLAIN})",
    f"FedACG({PLAIN}, momentum=0.7)",
    f"FedDC({PLAIN})",
    f"FedGen({PLAIN}, hidden=8, noise=2, steps=2)",
    f"FedAvg({PLAIN}, opt=Momentum(1.0))",
    f"FedAvg({PLAIN}, opt=Adagrad(0.03))",
    f"FedAvgSLM({HEAVY})",
    f"DOMO(0.8, {HEAVY}, opt=Momentum(0.5, beta=0.9))",
    f"DOMO(0.8, {HEAVY}, opt=Momentum(0.5, beta=0.9), intra=True, momentum='sent')",
    f"FedAvgLM({HEAVY})",
    f"PruneFL(FedAvg({PLAIN}), every=2, share=0.5)",
    f"FedPara(FedAvg({PLAIN}), rank=4)",
    f"FedPara(PruneFL(FedAvg({PLAIN}), every=2), rank=4)",
]
STREAMED = [  # what FLSS goes around
    "FedAvg()",
    "FedAvg(weights='uniform')",
    "FedAvg(LocalSGD(prox=0.1), weights='uniform')",
    "FedAvg(up=ErrorFeedback(ScaledSign()))",
    "FedAvg(up={'update': ErrorFeedback(ScaledSign())}, weights='uniform')",
    "FedAvg(opt=Adam(0.03))",
    "FedAvg(opt=Adam(0.03), down=EF21(TopK(0.3)), weights='uniform', buffers='local')",
    "FedAvg(opt=SGD(0.5), up=LBGM(threshold=0.5))",
    "FedProx(mu=0.3)",
]

# The hand values of the table come from these scripts.
#
#   h = np.array([1.0, 2.0]); a = np.array([[1.0, 0.0], [1.0, 1.0]]); n = np.array([1, 3])  # a: mean targets
#   def local(x, i, mu=0.0, offset=0.0, anchor=None):
#       y, to = x.copy(), x if anchor is None else anchor
#       for _ in range(2): y = y - 0.1 * (h * (y - a[i]) + mu * (y - to) + offset)
#       return y
#   def mean(d, w=n): return (w[:, None] * np.array(d)).sum(0) / w.sum()
#
#   def fedavg(w=n, mu=0.0, step=lambda x, d: x + d):
#       x = np.array([0.5, -1.0])
#       for _ in range(2): x = step(x, mean([local(x, i, mu) - x for i in (0, 1)], w)); print(x)
#   fedavg(); fedavg(np.ones(2)); fedavg(mu=0.5)            # the last of these is FedProx too
#   class Adam:                                             # Momentum: m = .9 m + d; x + .5 m
#       m, v = np.zeros(2), np.full(2, 1e-6)
#       def __call__(s, x, d):
#           s.m = .9 * s.m + .1 * d; s.v = .99 * s.v + .01 * d**2   # Yogi: v - .01 d**2 sign(v - d**2)
#           return x + .05 * s.m / (np.sqrt(s.v) + 1e-3)
#   fedavg(step=Adam())
#
#   x = np.array([0.5, -1.0]); H = G = m = c = np.zeros(2); g = ci = np.zeros((2, 2))      # before each method
#   for _ in range(2):                                        # FedDyn; w = np.ones(2) or n
#       d = np.array([local(x, i, mu=.5, offset=-g[i]) - x for i in (0, 1)])
#       g = g - .5 * d; H = H - .5 * mean(d, w); x = x + mean(d, w) - H / .5
#   for _ in range(3):                                        # FedDC
#       d = np.array([local(x, i, mu=.5, offset=G - g[i], anchor=x - H[i]) - x for i in (0, 1)])
#       H = H + d; g = g - G - d / (2 * .1); x, G = x + mean(d + H), mean(g)
#   for _ in range(3):                                        # FedACG
#       at = x + .5 * m; m = .5 * m + mean([local(at, i, mu=.5) - at for i in (0, 1)]); x = x + m
#   for _ in range(2):                                        # SCAFFOLD, option I
#       ys = [local(x, i, offset=c - ci[i]) for i in (0, 1)]
#       new = np.array([h * (x - a[i]) for i in (0, 1)])
#       x = x + mean([y - x for y in ys]); c = c + (new - ci).sum(0) / 2; ci = new
#
#   def pushed(x, i, mu, m=0.0, add=0.0):                     # with momentum
#       for _ in range(2): m = mu * m + h * (x - a[i]); x = x - 0.1 * m + add
#       return x, m
#   def run(mu, mu_s, alpha, beta=0.0, intra=False, average=False):
#       x, M, m = np.array([0.5, -1.0]), np.zeros(2), np.zeros(2)
#       for _ in range(3):
#           ends = [pushed(x + (not intra) * beta * M, i, mu, m, intra * beta * M / 2) for i in (0, 1)]
#           d = mean([y - x - beta * M for y, _ in ends])
#           if average: m = mean([e for _, e in ends])
#           M = mu_s * M + d; x = x + alpha * M; print(x)
#   run(0, .9, .5); run(.6, 0, 1); run(.6, .9, .5); run(.6, 0, 1, average=True); run(.6, .9, .5, average=True)
#   run(.6, .9, .5, .8); run(.6, .9, .5, .8, intra=True)

METHODS = [
    Method(
        "FedAvg",
        trained=(
            "FedAvg()",
            "FedAvg(weights='uniform')",
            "FedAvg(buffers='local')",
            "FedAvg(LocalSGD(prox=0.1))",
            "FedAvg(LocalSGD(lr=0.1, momentum=0.9, weight_decay=0.001))",
            "FedAvg(LocalSGD(lr=Decay(0.5, rounds=(2, 4), factor=0.5)))",
            "FedAvg(LocalSGD(steps=3), opt=Momentum(0.5, beta=0.9))",
            "FedAvg(LocalAdamW(lr=0.01, warmup=5, clip=1.0))",
            "FedAvg(opt=Adam(0.03))",
            "FedAvg(opt=Yogi(0.03))",
            "FedAvg(opt=Adagrad(0.03))",
            "FedAvg(opt=MajorityVote(0.02), up=SignSGD(), down=EF21(ScaledSign()), weights='uniform')",
            # Over links, alone and inside each other:
            "FedAvg(up=ErrorFeedback(TopK(0.1, values=Half())))",
            "FedAvg(up=ErrorFeedback(Flat(TopK(0.1))))",
            "FedAvg(up=ErrorFeedback(ScaledSign()))",
            "FedAvg(up=RandK(0.3))",
            "FedAvg(up=BF16(), down=Half())",
            "FedAvg(up=EF21(TopK(0.3)), down=EF21(TopK(0.3)))",
            "FedAvg(up=LBGM(threshold=0.6))",
            "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.7), weights='uniform')",
            "FedAvg(up=LBGM(Projection(200), threshold=0.7))",
            "FedAvg(up=LBGM(PowerSGD(1), threshold=0.5))",
            "FedAvg(up=Layerwise(LBGM(ErrorFeedback(TopK(0.3)), threshold=0.6)))",
            "FedAvg(up=LBGM(ErrorFeedback(TopK(0.3)), threshold=0.8, compare='dense', store='packet'))",
            "FedAvg(up=ErrorFeedback(LBGM(TopK(0.3), threshold=0.8, compare='dense')))",
            "FedAvg(up=ErrorFeedback(LBGM(RandK(0.4), threshold=0.9, compare='dense', store='packet')))",
            "FedAvg(up=ErrorFeedback(Budget(900)))",
            "FedAvg(up=Partition({'*.bias': Dense(), '*': ErrorFeedback(TopK(0.1))}))",
            "FedAvg(LocalSGD(lr=0.2), up=Projection(64))",
            "FedAvg(LocalSGD(lr=0.3), up=Flat(Projection(600, fixed=True)))",
            "FedAvg(up=QSGD(16))",
            "FedAvg(up=Partition({'<100': Dense(), '*': Ternary()}))",
            "FedAvg(up=Entropy(Int8()), down=EF21(Entropy(Int8())))",
            "FedAvg(up=ErrorFeedback(STC(0.1)), down=EF21(STC(0.2)))",
            "FedAvg(up=ErrorFeedback(RandomBlock(4.0)))",
            "FedAvg(up=ErrorFeedback(LowRank(2)))",
            "FedAvg(up=ATOMO(3))",
            "FedAvg(up=PowerSGD(2))",
            "FedAvg(up=Flat(CountSketch(5, 150)))",
        ),
        by_hand={
            f"FedAvg({TWICE})": [[0.595, -0.37], [0.67195, 0.0332]],
            f"FedAvg({TWICE}, weights='uniform')": [[0.595, -0.46], [0.67195, -0.1144]],
            "FedAvg(LocalSGD(0.1, batch=None, steps=2, prox=0.5))": [[0.5925, -0.3875], [0.6678875, 0.010625]],
            f"FedAvg({TWICE}, opt=Adam(0.05))": [[0.54501532, -0.95078729], [0.60710123, -0.88425962]],
            f"FedAvg({TWICE}, opt=Yogi(0.05))": [[0.54501309, -0.95078735], [0.60693871, -0.8844291]],
            f"FedAvg({TWICE}, opt=Momentum(0.5, beta=0.9))": [[0.5475, -0.685], [0.6332375, -0.1432]],
        },
        same={
            "LBGM that never recycles is FedAvg": ("FedAvg(up=LBGM(threshold=0.0))", "FedAvg()"),
            "LBGM that never recycles, layer by layer, is FedAvg": (
                "FedAvg(up=Layerwise(LBGM(threshold=0.0)), weights='uniform')",
                "FedAvg(weights='uniform')",
            ),
            "LBGM that never recycles is the link it holds": (
                f"FedAvg(up=LBGM({LOSSY}, threshold=0.0))",
                f"FedAvg(up={LOSSY})",
            ),
            "LBGM against the dense update that never recycles is the link it holds": (
                f"FedAvg(up=LBGM({LOSSY}, threshold=0.0, compare='dense', store='packet'))",
                f"FedAvg(up={LOSSY})",
            ),
            "a budget that holds everything is dense": (
                "FedAvg(up=Budget(4_000, ladder=(TopK(0.1), Half(), Dense())))",
                "FedAvg()",
            ),
            "top-k of everything is dense": ("FedAvg(up=TopK(1.0))", "FedAvg()"),
            "error feedback without an error is dense": ("FedAvg(up=ErrorFeedback(TopK(1.0)))", "FedAvg()"),
            "sparse is dense": ("FedAvg(up=Sparse(), down=Sparse())", "FedAvg()"),
            "what is lossless changes nothing": (f"FedAvg(up=Entropy({LOSSY}))", f"FedAvg(up={LOSSY})"),
            "a block of everything is dense": ("FedAvg(up=RandomBlock(1.0))", "FedAvg()"),
            "a pull of nothing is none": ("FedAvg(LocalSGD(prox=0.0))", "FedAvg()"),
            "Nesterov without memory is SGD": ("FedAvg(opt=Nesterov(0.7, momentum=0.0))", "FedAvg(opt=SGD(0.7))"),
            "momentum without memory is SGD": ("FedAvg(opt=Momentum(0.7, beta=0.0))", "FedAvg(opt=SGD(0.7))"),
            "epochs of so many batches are so many steps": (
                "FedAvg(LocalSGD(batch=None, epochs=3))",
                "FedAvg(LocalSGD(batch=1000, steps=3))",
            ),
        },
        golden={
            "fedavg": f"FedAvg({GOLD})",
            "fedprox_momentum": ("FedAvg(LocalSGD(lr=0.1, batch=16, prox=0.1), opt=Momentum(0.7), weights='uniform')"),
            "fedadam_halves": f"FedAvg({GOLD}, opt=Adam(0.03), up=BF16(), down=Half())",
            "topk_feedback": f"FedAvg({GOLD}, up=ErrorFeedback(TopK(0.05)), down=EF21(TopK(0.2)))",
            "sign_feedback": f"FedAvg({GOLD}, up=ErrorFeedback(ScaledSign()))",
            "lbgm": f"FedAvg({GOLD}, up=LBGM(threshold=0.6))",
            "lbgm_by_layer": f"FedAvg({GOLD}, up=Layerwise(LBGM(TopK(0.3), threshold=0.6)))",
            "low_rank": f"FedAvg({GOLD}, up=ErrorFeedback(LowRank(2)))",
            "powersgd": f"FedAvg({GOLD}, up=PowerSGD(2))",
            "projection": f"FedAvg({GOLD}, up=Projection(200))",
            "fedpaq": f"FedAvg({GOLD}, up=QSGD(16))",
            "stc": f"FedAvg({GOLD}, up=ErrorFeedback(STC(0.05)), down=EF21(STC(0.1)))",
            "majority_vote": f"FedAvg({GOLD}, opt=MajorityVote(0.02), up=SignSGD(), weights='uniform')",
            "fed_dropout_avg": f"FedAvg({GOLD}, up=DropoutAvg(0.3))",
        },
    ),
    Method(
        "FedProx",
        trained=("FedProx(mu=0.1)",),
        by_hand={f"FedProx({TWICE}, mu=0.5)": [[0.5925, -0.3875], [0.6678875, 0.010625]]},
        same={
            "FedProx that pulls by nothing is FedAvg": ("FedProx(mu=0.0)", "FedAvg()"),
            "FedProx is FedAvg whose clients are pulled": ("FedProx(mu=0.3)", "FedAvg(LocalSGD(prox=0.3))"),
            "FedProx over links and servers is FedAvg over them": (
                f"FedProx(opt=Adam(0.03), up={LOSSY}, mu=0.3)",
                f"FedAvg(LocalSGD(prox=0.3), opt=Adam(0.03), up={LOSSY})",
            ),
        },
        refused={
            "FedProx(mu=-0.1)": "FedProx(mu=-0.1): mu must not be negative",
            "FedProx(LocalSGD(prox=0.1))": "...FedProx pulls by its own mu; leave prox at 0",
        },
        payload={"FedProx()": (3652, 3652)},
    ),
    Method(
        "SCAFFOLD",
        trained=(
            "SCAFFOLD()",
            "SCAFFOLD(up=TopK(0.3))",
            "SCAFFOLD(LocalSGD(lr=0.3, warmup=4, clip=2.0))",
            "SCAFFOLD(up={'update': ErrorFeedback(TopK(0.2)), 'control': Half()}, down={'c': Half()})",
            "SCAFFOLD(up=DropoutAvg(0.3))",
            "SCAFFOLD(LocalSGD(lr=0.1, momentum=0.9), option='I')",
        ),
        by_hand={f"SCAFFOLD({TWICE}, option='I')": [[0.595, -0.37], [0.67195, -0.0568]]},
        same={
            "dropping nothing is dense": ("SCAFFOLD(up=DropoutAvg(0.0))", "SCAFFOLD()"),
            "a dict of links is the link": (
                f"SCAFFOLD(up={{'update': {LOSSY}, 'control': {LOSSY}}})",
                f"SCAFFOLD(up={LOSSY})",
            ),
            "a schedule that never moves is its number": (
                "SCAFFOLD(LocalSGD(lr=Exponential(0.1, factor=1.0)))",
                "SCAFFOLD()",
            ),
        },
        refused={
            "SCAFFOLD(option='III')": "SCAFFOLD(option='III'): one of 'I', 'II' is expected",
            "SCAFFOLD(LocalSGD(momentum=0.9))": "...local momentum=0.9 stretches: use momentum=0, or option='I'",
        },
        payload={"SCAFFOLD(option='I')": (7300, 7300)},
        golden={
            "scaffold": f"SCAFFOLD({GOLD}, up={{'control': Half()}})",
            "scaffold_gradient": f"SCAFFOLD({GOLD}, option='I')",
        },
    ),
    Method(
        "FedDyn",
        trained=(
            "FedDyn(alpha=0.1)",
            "FedDyn(LocalSGD(lr=0.3), alpha=0.5, up=ErrorFeedback(TopK(0.3)), weights='examples')",
            "FedDyn(LocalAdam(lr=0.01), alpha=0.1, up=ErrorFeedback(TopK(0.3)))",
        ),
        by_hand={
            f"FedDyn({TWICE}, alpha=0.5)": [[0.685, 0.05], [0.8769375, 0.798125]],
            f"FedDyn({TWICE}, alpha=0.5, weights='examples')": [[0.685, 0.225], [0.8769375, 1.0978125]],
        },
        refused={
            "FedDyn(alpha=0)": "FedDyn(alpha=0.0): alpha must be positive",
            "FedDyn(LocalSGD(prox=0.1))": "...FedDyn pulls by its own alpha; leave prox at 0",
        },
        payload={"FedDyn()": (3652, 3652)},
        golden={"feddyn": f"FedDyn({GOLD}, alpha=0.2)"},
    ),
    Method(
        "FedDC",
        trained=(
            "FedDC(LocalSGD(lr=0.3, batch=8), alpha=0.1)",
            "FedDC(LocalSGD(lr=0.2), up={'gradient': Half()}, weights='uniform')",
        ),
        by_hand={f"FedDC({TWICE}, alpha=0.5)": [[0.685, 0.225], [0.8769375, 1.0978125], [1.03837891, 1.46703516]]},
        refused={
            "FedDC(alpha=-1)": "FedDC(alpha=-1.0): alpha must not be negative",
            "FedDC(LocalSGD(momentum=0.9))": "...local momentum=0.9 stretches: use momentum=0",
        },
        payload={"FedDC()": (7300, 7300)},
        golden={"feddc": f"FedDC({GOLD}, alpha=0.2, down={{'g': Half()}})"},
    ),
    Method(
        "MOON",
        trained=("MOON(mu=0.5)", "MOON(temperature=1.0, layer='1', up=LBGM(threshold=0.6))"),
        same={
            "MOON that contrasts nothing is FedAvg": ("MOON(mu=0.0)", "FedAvg()"),
            "MOON over the output of a layer that contrasts nothing is FedAvg": ("MOON(mu=0.0, layer='1')", "FedAvg()"),
        },
        refused={
            "MOON(mu=-1)": "MOON(mu=-1.0): mu must not be negative",
            "MOON(temperature=0)": "MOON(temperature=0.0): temperature must be positive",
        },
        payload={"MOON()": (3652, 3652)},
        golden={"moon": f"MOON({GOLD}, mu=0.5, up={LOSSY})"},
    ),
    Method(
        "FedNTD",
        trained=("FedNTD(beta=0.3, temperature=2.0)",),
        same={"FedNTD that distils nothing is FedAvg": ("FedNTD(beta=0.0)", "FedAvg()")},
        refused={
            "FedNTD(beta=-1)": "FedNTD(beta=-1.0): beta must not be negative",
            "FedNTD(temperature=-1)": "FedNTD(temperature=-1.0): temperature must be positive",
        },
        payload={"FedNTD()": (3652, 3652)},
        golden={"fedntd": f"FedNTD({GOLD}, beta=0.5, temperature=2.0)"},
    ),
    Method(
        "FedGen",
        trained=(
            "FedGen(hidden=16, noise=4, steps=20)",
            "FedGen(weight=0.5, hidden=8, noise=3, steps=5, up=EF21(TopK(0.3)), down={'generator': Half()})",
        ),
        same={
            "FedGen whose lessons count nothing is FedAvg": (
                "FedGen(weight=0.0, hidden=8, noise=2, steps=2)",
                "FedAvg()",
            )
        },
        refused={
            "FedGen(weight=-1)": "FedGen(weight=-1.0): weight must not be negative",
            "FedGen(steps=0)": "FedGen(steps=0): steps must be at least 1",
        },
        # The generator is [8, 14] + [8] + [12, 8] + [12]: 228 floats down; ten labels of 8 bytes both ways.
        payload={"FedGen(hidden=8, noise=4, steps=1)": (3736, 4656)},
        golden={"fedgen": f"FedGen({GOLD}, hidden=8, noise=4, steps=10)"},
    ),
    Method(
        "FedMut",
        trained=("FedMut(alpha=0.5)", "FedMut(alpha=1.0, down=EF21(TopK(0.6)))"),
        same={"FedMut without mutation is FedAvg": ("FedMut(alpha=0.0)", "FedAvg()")},
        refused={"FedMut(alpha=-1)": "FedMut(alpha=-1.0): alpha must not be negative"},
        payload={"FedMut()": (3652, 3652)},
        golden={"fedmut": f"FedMut({GOLD}, alpha=1.0)"},
    ),
    Method(
        "FedACG",
        trained=("FedACG(momentum=0.5)", "FedACG(beta=0.1, up=ErrorFeedback(ScaledSign()), down=BF16())"),
        by_hand={
            f"FedACG({TWICE}, momentum=0.5, beta=0.5)": [
                [0.5925, -0.3875],
                [0.70558125, 0.2096875],
                [0.80612933, 0.59288281],
            ]
        },
        same={
            "FedACG without momentum and pull is FedAvg": ("FedACG(momentum=0.0, beta=0.0)", "FedAvg()"),
            "FedACG without momentum is FedProx": ("FedACG(momentum=0.0, beta=0.2)", "FedProx(mu=0.2)"),
        },
        refused={
            "FedACG(momentum=1)": "FedACG(momentum=1.0): momentum must be in [0, 1)",
            "FedACG(beta=-1)": "FedACG(beta=-1.0): beta must not be negative",
        },
        payload={"FedACG()": (3652, 3652)},
    ),
    Method(
        "FedAvgSM",
        trained=("FedAvgSM(opt=Momentum(0.5, beta=0.5))",),
        by_hand={
            f"FedAvgSM({TWICE}, opt=Momentum(0.5))": [[0.5475, -0.685], [0.6332375, -0.1432], [0.74524369, 0.505196]]
        },
        same={
            "FedAvgSM is FedAvg with a server's momentum": ("FedAvgSM()", "FedAvg(opt=Momentum(1.0, beta=0.9))"),
        },
    ),
    Method(
        "FedAvgLM",
        trained=(
            "FedAvgLM(LocalSGD(0.1, momentum=0.6))",
            "FedAvgLM(LocalSGD(0.1, momentum=0.6), up={'momentum': BF16()}, down=Half())",
        ),
        by_hand={f"FedAvgLM({TWICE_HEAVY})": [[0.625, -0.16], [0.78625, 0.6884], [0.9105625, 1.030784]]},
        refused={
            "FedAvgLM(LocalSGD(0.1))": "FedAvgLM averages local momentum: give it some, LocalSGD(momentum=0.6)",
        },
    ),
    Method(
        "FedAvgLMZ",
        trained=("FedAvgLMZ(LocalSGD(0.1, momentum=0.6), up=ErrorFeedback(TopK(0.2)))",),
        by_hand={f"FedAvgLMZ({TWICE_HEAVY})": [[0.625, -0.16], [0.71875, 0.2768], [0.7890625, 0.503936]]},
        same={
            "FedAvgLMZ is FedAvg with local momentum": (f"FedAvgLMZ({HEAVY})", f"FedAvg({HEAVY})"),
        },
    ),
    Method(
        "FedAvgSLM",
        trained=(
            "FedAvgSLM(LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5))",
            "FedAvgSLM(LocalSGD(0.1, momentum=0.6), up={'momentum': TopK(0.5)}, opt=Momentum(0.5, beta=0.5))",
        ),
        by_hand={
            f"FedAvgSLM({TWICE_HEAVY}, opt=Momentum(0.5))": [
                [0.5625, -0.58],
                [0.7071875, 0.323],
                [0.91366406, 1.44398],
            ]
        },
        same={
            "FedAvgSLM without momentum at the server is FedAvgLM": (
                f"FedAvgSLM({HEAVY}, opt=Momentum(0.7, beta=0.0))",
                f"FedAvgLM({HEAVY}, opt=SGD(0.7))",
            ),
        },
        refused={
            "FedAvgSLM(LocalSGD(0.1))": "FedAvgSLM averages local momentum: give it some, LocalSGD(momentum=0.6)",
        },
        golden={
            "local_momentum": "FedAvgSLM(LocalSGD(lr=0.1, batch=16, momentum=0.6), up={'momentum': Half()})",
        },
    ),
    Method(
        "FedAvgSLMZ",
        trained=("FedAvgSLMZ(LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5), weights='uniform')",),
        by_hand={
            f"FedAvgSLMZ({TWICE_HEAVY}, opt=Momentum(0.5))": [
                [0.5625, -0.58],
                [0.6734375, 0.1172],
                [0.81410156, 0.896552],
            ]
        },
    ),
    Method(
        "DOMO",
        trained=(
            "DOMO(0.9, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5))",
            "DOMO(0.9, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5), intra=True)",
            "DOMO(0.5, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5), momentum='sent', down=Half())",
        ),
        by_hand={
            f"DOMO(0.8, {TWICE_HEAVY}, opt=Momentum(0.5))": [
                [0.5625, -0.58],
                [0.6609375, -0.04408],
                [0.77222656, 0.42303392],
            ],
            f"DOMO(0.8, {TWICE_HEAVY}, opt=Momentum(0.5), intra=True)": [
                [0.5625, -0.58],
                [0.6709375, 0.0836],
                [0.80532656, 0.787688],
            ],
            f"DOMO(0.8, {TWICE_HEAVY}, opt=Momentum(0.5), intra=True, momentum='sent')": [
                [0.5625, -0.58],
                [0.6709375, 0.0836],
                [0.80532656, 0.787688],
            ],
        },
        same={
            "DOMO without fusion is FedAvgSLMZ": (
                f"DOMO(0.0, {HEAVY}, opt=Momentum(0.5, beta=0.9))",
                f"FedAvgSLMZ({HEAVY}, opt=Momentum(0.5, beta=0.9))",
            ),
            "DOMO-S without fusion is FedAvgSLMZ": (
                f"DOMO(0.0, {HEAVY}, opt=Momentum(0.5, beta=0.9), intra=True)",
                f"FedAvgSLMZ({HEAVY}, opt=Momentum(0.5, beta=0.9))",
            ),
            "DOMO without any momentum is FedAvg": (
                f"DOMO(0.0, {PLAIN}, opt=Momentum(1.0, beta=0.0))",
                f"FedAvg({PLAIN})",
            ),
            "DOMO-S without any momentum is FedAvg": (
                f"DOMO(0.0, {PLAIN}, opt=Momentum(1.0, beta=0.0), intra=True, momentum='sent', weights='uniform')",
                f"FedAvg({PLAIN}, weights='uniform')",
            ),
            "a downlink that loses nothing may carry what is inferred": (
                f"DOMO(0.8, {HEAVY}, opt=Momentum(0.5, beta=0.9), down=Sparse())",
                f"DOMO(0.8, {HEAVY}, opt=Momentum(0.5, beta=0.9))",
            ),
        },
        refused={
            "DOMO(1.1)": "DOMO(beta=1.1): beta must be in [0, 1]",
            "DOMO(-0.1)": "DOMO(beta=-0.1): beta must be in [0, 1]",
            "DOMO(opt=Momentum(1.0, beta=1.0))": "Momentum(beta=1.0): beta must be in [0, 1)",
            "DOMO(local=LocalSGD(momentum=1.0))": "LocalSGD(momentum=1.0): momentum must be in [0, 1)",
            "DOMO(momentum='guessed')": "DOMO(momentum='guessed'): one of 'inferred', 'sent' is expected",
            "DOMO(opt=Adam(0.1))": "DOMO(opt=Adam(0.1)): Momentum is expected",
            "DOMO(down=Half())": (
                "DOMO(down=Half()): the difference of two models that lost something on the way is not the server's "
                "momentum; take momentum='sent', or a downlink that loses nothing"
            ),
            "DOMO(0.8, down={'x': Half()})": "DOMO(down=...): the difference of two models that lost something...",
        },
        golden={
            "domo": "DOMO(0.9, LocalSGD(lr=0.1, batch=16, momentum=0.6), opt=Momentum(0.7, beta=0.5))",
        },
    ),
    Method(
        "ClusteredLBGM",
        trained=(
            "ClusteredLBGM(3, threshold=0.6)",
            "ClusteredLBGM(2, threshold=0.8, up=ErrorFeedback(TopK(0.3)), "
            "down={'x': Half(), 'centroids': EF21(TopK(0.3))})",
        ),
        same={
            "clustered LBGM that never recycles is FedAvg": ("ClusteredLBGM(2, threshold=0.0)", "FedAvg()"),
            "clustered LBGM that never recycles is FedAvg over its link": (
                f"ClusteredLBGM(3, threshold=0.0, opt=Adam(0.03), up={LOSSY}, weights='uniform')",
                f"FedAvg(opt=Adam(0.03), up={LOSSY}, weights='uniform')",
            ),
        },
        refused={
            "ClusteredLBGM(0)": "ClusteredLBGM(clusters=0): clusters is a number of centroids",
            "ClusteredLBGM(threshold=1.5)": "ClusteredLBGM(threshold=1.5): threshold is a squared sine, 0 to 1",
        },
    ),
    Method(
        "FetchSGD",
        trained=(
            "FetchSGD(150, 80, momentum=0.5)",
            "FetchSGD(300, 40, rows=3, momentum=0.3, masking=False, error='subtract', known=True, up=Half())",
        ),
        refused={
            "FetchSGD(0, 2)": "FetchSGD(cols=0): cols must be at least 1",
            "FetchSGD(10, 0)": "FetchSGD(k=0): k must be at least 1",
            "FetchSGD(10, 2, rows=0)": "FetchSGD(rows=0): rows must be 1 to 64",
            "FetchSGD(10, 2, momentum=1.0)": "FetchSGD(momentum=1.0): momentum must be in [0, 1)",
            "FetchSGD(10, 2, lr=0.0)": "FetchSGD(lr=0.0): lr must be positive",
            "FetchSGD(20, 911)": "FetchSGD(k=911): more than the model's 910 parameters",
        },
        golden={"fetchsgd": f"FetchSGD(200, 60, momentum=0.5, local={GOLD})"},
    ),
    Method(
        "FedPM",
        trained=(
            "FedPM(LocalAdam(0.3, batch=8, epochs=3))",
            "FedPM(LocalSGD(lr=30.0, batch=8, epochs=3), reset=2, shown='mean', down=Entropy(Dense()))",
            "FedPM(LocalAdam(0.3, batch=4, epochs=4), reset=3, shown='threshold', least=0.1, up=Dense(), down=Half())",
        ),
        refused={
            "FedPM(reset=0)": "FedPM(reset=0): reset must be at least 1",
            "FedPM(least=0.5)": "FedPM(least=0.5): least must be above 0 and below 0.5",
        },
    ),
    Method(
        "DeComFL",
        trained=(
            "DeComFL(4, directions=10, local=LocalSGD(lr=0.2, batch=32))",
            "DeComFL(4, directions=10, mu=0.01, local=LocalSGD(lr=0.1, batch=32), up=Half(), weights='uniform')",
        ),
        refused={
            "DeComFL(0)": "DeComFL(steps=0): steps must be at least 1",
            "DeComFL(directions=0)": "DeComFL(directions=0): directions must be at least 1",
            "DeComFL(mu=0)": "DeComFL(mu=0.0): mu must be positive",
            "DeComFL(local=LocalSGD(0.1, momentum=0.9))": "...leave momentum and prox of local at 0",
        },
    ),
    Method(
        "Intrinsic",
        trained=(
            "Intrinsic(600, local=LocalSGD(lr=0.3))",
            "Intrinsic(400, subspaces=2, varying=True, epoch=2, local=LocalSGD(lr=0.3), basis=Gaussian())",
            "Intrinsic(400, subspaces=2, local=LocalSGD(lr=0.3), opt=Adam(0.03), up=ErrorFeedback(TopK(0.3)))",
            "Intrinsic(400, varying=True, epoch=3, known=True, local=LocalSGD(lr=0.2), opt=Momentum(0.5))",
            "Intrinsic(400, subspaces=2, varying=True, epoch=3, local=LocalSGD(lr=0.3), buffers='local')",
            "Intrinsic(400, varying=True, epoch=2, basis=PerTensor(Gaussian()), known=True, local=LocalSGD(lr=0.3))",
        ),
        refused={
            "Intrinsic(0)": "Intrinsic(dim=0): dim must be positive",
            "Intrinsic(-4)": "Intrinsic(dim=-4): dim must be positive",
            "Intrinsic(8, subspaces=0)": "Intrinsic(subspaces=0): at least 1",
            "Intrinsic(8, varying=True, epoch=0)": "Intrinsic(epoch=0): an epoch has at least 1 round",
            "Intrinsic(911)": "Intrinsic(dim=911, subspaces=1): more than the model's 910 parameters",
            "Intrinsic(456, subspaces=2)": "Intrinsic(dim=456, subspaces=2): more than the model's 910 parameters",
            "Intrinsic(8, opt=Dense())": "Intrinsic(opt=Dense()): Optimizer such as Adam(0.03) is expected",
            "Intrinsic(8, down=TopK(0.1))": "down=TopK(0.1) cannot carry a broadcast...",
            "Intrinsic(4, varying=True, down=Half())": "...nothing would bring it back; use down=Dense()",
        },
        golden={
            "intrinsic": "Intrinsic(200, subspaces=2, varying=True, epoch=2, local=LocalSGD(lr=0.1, batch=16))",
        },
    ),
    Method(
        "Averaged",
        trained=("Averaged(SCAFFOLD(), decay=0.5)",),
        refused={"Averaged(FedAvg(), decay=1.0)": "Averaged(decay=1.0): decay must be at least 0 and below 1"},
    ),
    Method(  # w0 = x + lam * e[i]; p = local(w0, i) - w0 + e[i]; s = where(|p| == max |p|, p, 0); e[i] = p - s
        "Detached",
        trained=(
            "Detached(FedAvg(up=ErrorFeedback(TopK(0.2))))",
            "Detached(LUAR(SCAFFOLD(up=Layerwise(ErrorFeedback(TopK(0.2)))), recycle=1), lam=1.0)",
            "Averaged(Detached(FedProx(opt=SGD(0.9), up=PowerSGD(2), mu=0.1), lam=0.3), decay=0.5)",
            "Detached(SoftPull(FedAvg(up=Entropy(ErrorFeedback(TopK(0.3)))), lam=0.6))",
        ),
        same={
            f"Detached by nothing is {inner}": (f"Detached({inner}, lam=0.0)", inner)
            for inner in (
                f"FedAvg(up={LOSSY})",
                f"FedAvg(LocalAdamW(0.01, keep=True), opt=Nesterov(), weights='uniform', up={LOSSY})",
                f"FedAvgLM({HEAVY}, up={LOSSY})",
                f"FLSS(FedAvg(up={LOSSY}), rank=2, start=2, every=2)",
                f"PruneFL(FedAvg(up={LOSSY}), every=2)",
            )
        },
        by_hand={
            f"Detached(FedAvg({ONCE}, up=ErrorFeedback(TopK(0.5))))": [
                [0.5, -0.65],
                [0.5, -0.37],
                [0.53565625, -0.1645],
                [0.53565625, 0.03505],
            ],
            f"Detached(FedAvg({TWICE}, up=ErrorFeedback(TopK(0.5))), lam=1.0)": [
                [0.5, -0.37],
                [0.5429875, -0.0001],
                [0.56469559, 0.269927],
                [0.78476639, 0.269927],
            ],
        },
        refused={
            "Detached(FedAvg())": "Detached(FedAvg(...), lam=0.5): up=Dense() keeps no residual that others "
            "may read, so there is nothing to begin ahead by: give the method error feedback, such as "
            "up=ErrorFeedback(TopK(0.01)), or leave Detached away",
            "Detached(SCAFFOLD(up=QSGD(16)))": "...up=QSGD(16) keeps no residual...",
            "Detached(FedAvg(up=EF21(TopK(0.1))))": "...up=EF21(...) keeps no residual...",
            f"Detached(FedAvg(up={LOSSY}), lam=1.5)": "Detached(lam=1.5): lam must be in [0, 1]",
            f"Detached(LUAR(Detached(FedAvg(up={LOSSY})), recycle=1))": "Detached around ...: there is one lam; leave "
            "one of the two away",
            f"FedSM(up={LOSSY}, personal=Detached(Ditto(up={LOSSY})))": "...: messages are FedSM's, and so is what its "
            "clients owe; leave Detached away",
            **{
                f"Detached({inner}up={LOSSY}))": "...its clients do not send an update of a model x that their "
                "view has, so they cannot begin ahead of it: leave Detached away"
                for inner in (
                    "FetchSGD(30, 5, ",
                    "Intrinsic(8, ",
                    "FedPM(",
                    "DeComFL(2, ",
                    "ClusteredLBGM(2, ",
                    "FedSM(",
                )
            },
        },
    ),
    Method(
        "LUAR",
        trained=(
            "LUAR(FedAvg(), recycle=1)",
            "LUAR(FedAvg(opt=Adam(0.03), up=ErrorFeedback(TopK(0.2))), recycle=2, layers='tensors')",
            "LUAR(FedAvg(up=LBGM(threshold=0.6)), recycle=1, layers='modules', select='gradient-norm')",
            "LUAR(FedAvg(), recycle=1, select='round-robin', drop=True)",
            "LUAR(FedProx(opt=SGD(0.9)), recycle=2, layers='tensors', both=True)",
            "LUAR(FedAvg(LocalAdamW(0.02, clip=1.0, warmup=9, keep=True)), recycle=1)",
            "LUAR(SCAFFOLD(down=EF21(TopK(0.6))), recycle=1, select='uniform')",
            "LUAR(SCAFFOLD(LocalAdam(lr=0.01, keep=True), option='I'), recycle=1)",
            "LUAR(SCAFFOLD(up={'update': LBGM(ErrorFeedback(TopK(0.3)), threshold=0.8)}, "
            "down={'x': EF21(TopK(0.3)), 'c': Half()}, opt=Yogi(0.03)), recycle=1)",
            "LUAR(FedProx(mu=0.1), recycle=1)",
            "LUAR(FedMut(), recycle=1)",
            "LUAR(FedACG(LocalSGD(batch=8), momentum=0.7), recycle=1, select='round-robin')",
            "LUAR(MOON(mu=0.3), recycle=2, layers='tensors')",
            "LUAR(FedGen(hidden=4, noise=2, steps=3), recycle=1)",
            "LUAR(DOMO(0.5, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5)), recycle=1)",
            "LUAR(FedAvgLM(LocalSGD(0.1, momentum=0.6)), recycle=2, layers='tensors')",
            "LUAR(FedAvg(opt=Yogi(0.03)), recycle=2, layers='tensors', past=False)",
            "LUAR(Averaged(FedAvgSLM(LocalSGD(0.1, momentum=0.6))), recycle=1)",
        ),
        same={f"LUAR that recycles nothing is {inner}": (f"LUAR({inner}, recycle=0)", inner) for inner in RECYCLED}
        | {
            f"LUAR that recycles none of the {layers} is {inner}": (
                f"LUAR({inner}, recycle=0, layers='{layers}')",
                inner,
            )
            for layers in ("tensors", "modules")
            for inner in RECYCLED
            if inner.endswith(f"up={LOSSY}, weights='examples')")
        },
        refused={
            "LUAR(LUAR(FedAvg(), 1), 1)": (
                "LUAR over LUAR: the outer one would recycle what the inner one did not send"
            ),
            "LUAR(FedAvg(opt=Adam(0.03)), 1, both=True)": "...clients repeat the server's step, which they can over...",
            "LUAR(FedAvg(down=EF21()), 1, both=True)": "...clients repeat the server's step, which they can over...",
            "LUAR(SCAFFOLD(), 1, both=True)": "...clients repeat the server's step, which they can over...",
            "LUAR(FedAvg(), -1)": "LUAR(recycle=-1): recycle is a number of layers, 0 or more",
            "LUAR(FedAvg(), 2)": "LUAR(recycle=2): at most 1, the model has 2 kernels and one must be sent",
            "LUAR(FedAvg(), 2, layers='modules')": (
                "LUAR(recycle=2): at most 1, the model has 2 modules and one must be sent"
            ),
            "LUAR(FedAvg(), 4, layers='tensors')": (
                "LUAR(recycle=4): at most 3, the model has 4 tensors and one must be sent"
            ),
            "LUAR(FedDyn(), recycle=0)": (
                "LUAR over FedDyn: its server keeps h, the mean of the gradients that clients remember of every "
                "update they sent, which a layer that is recycled and not sent would put out of step"
            ),
            "LUAR(Intrinsic(4), recycle=1)": "LUAR needs a reply with an update of the model...",
            "LUAR(FetchSGD(20, 6), recycle=1)": "LUAR needs a reply with an update of the model...",
            "LUAR(FLSS(FedAvg(), rank=2, start=4), recycle=1)": "LUAR needs a reply with an update of the model...",
        },
        golden={
            "luar": f"LUAR(FedAvg({GOLD}, opt=Yogi(0.03)), recycle=2, layers='tensors')",
            "luar_scaffold": f"LUAR(SCAFFOLD({GOLD}, up=RandK(0.3)), recycle=1, select='gradient-norm')",
            "luar_fedacg": f"LUAR(FedACG({GOLD}, momentum=0.7), recycle=1)",
            "luar_through": f"LUAR(FedACG({GOLD}, momentum=0.7), recycle=1, past=False)",
            "luar_domo_s": "LUAR(DOMO(0.9, LocalSGD(lr=0.1, batch=16, momentum=0.6), intra=True), recycle=1)",
        },
    ),
    Method(
        "FLSS",
        trained=(
            "FLSS(FedAvg(), rank=3, start=3, every=2)",
            "FLSS(FedAvg(opt=Adam(0.03), up=ErrorFeedback(ScaledSign())), rank=2, start=2, every=3, store='bfloat16')",
            "FLSS(FedAvg(opt=Adam(0.03)), rank=3, start=4, every=3, decay=0.7)",
            "FLSS(FedAvg(opt=SGD(0.7)), rank=2, start=3, every=None, project='gradient')",
            "FLSS(FedAvg(LocalSGD(prox=0.1)), rank=2, start=3, every=None, decay=0.7, project='gradient', scale=0.5)",
            "FLSS(FedAvg(down=EF21(TopK(0.3))), rank=2, start=3, every=2)",
            "FLSS(FedAvg(up=Half()), rank=2, start=3, every=2, coefficients=RandK(0.7))",
            "FLSS(FedProx(mu=0.1), rank=2, start=3, every=2)",
            "FLSS(FedProx(LocalAdamW(lr=0.01, keep=True), mu=0.1), rank=2, start=3, every=2, project='gradient')",
            "FLSS(MOON(mu=0.1), rank=1, start=1, every=2)",
        ),
        same={
            f"FLSS whose rounds are all full is {inner}": (f"FLSS({inner}, rank=2, start=2, every=1)", inner)
            for inner in STREAMED
        }
        | {
            f"FLSS before its basis is made is {inner}": (f"FLSS({inner}, rank=2, start=3, every=None)", inner)
            for inner in STREAMED[:3]
        },
        refused={
            "FLSS(FedAvg(), rank=5, start=4)": (
                "FLSS(rank=5, start=4): 4 updates span at most as many directions; start must be at least rank"
            ),
            "FLSS(FedAvg(), rank=0, start=4)": "FLSS(rank=0): rank must be positive",
            "FLSS(FedAvg(), rank=2, start=4, every=0)": "FLSS(every=0): every must be at least 1, or None",
            "FLSS(FedAvg(), rank=2, start=4, every=-1)": "FLSS(every=-1): every must be at least 1, or None",
            "FLSS(FedAvg(), rank=2, start=4, decay=0)": "FLSS(decay=0.0): decay must be above 0 and at most 1",
            "FLSS(FedAvg(), rank=2, start=4, decay=1.5)": "FLSS(decay=1.5): decay must be above 0 and at most 1",
            "FLSS(FedAvg(), rank=2, start=4, scale=0)": "FLSS(scale=0.0): scale must be positive",
            "FLSS(FedAvg(), store='half')": "FLSS(store='half'): one of 'float32', 'bfloat16' is expected",
            "FLSS(FedAvg(), project='step')": "FLSS(project='step'): one of 'update', 'gradient' is expected",
            "FLSS(SCAFFOLD())": (
                "FLSS goes around FedAvg and what its arguments make of it (FedProx...SCAFFOLD() sends more than one "
                "update, or does more with it than step along the mean"
            ),
            "FLSS(FedMut())": "...FedMut(alpha=0.5) sends more than one update, or does more with it...",
            "FLSS(LUAR(FedAvg(), recycle=1))": (
                "...LUAR(FedAvg(), recycle=1) sends more than one update, or does more with it..."
            ),
            "FLSS(FLSS(FedAvg()))": "...FLSS(FedAvg(), rank=50) sends more than one update, or does more with it...",
            "FLSS(Intrinsic(8))": "...Intrinsic(8) sends more than one update, or does more with it...",
            "FLSS(PruneFL(FedAvg()), rank=2, start=2)": "...sends more than one update, or does more with it...",
        },
        golden={"flss": f"FLSS(FedAvg({GOLD}, up=ErrorFeedback(ScaledSign())), rank=1, start=1, every=2)"},
    ),
    Method(
        "FedPara",
        trained=(
            "FedPara(FedAvg(LocalSGD(0.1, epochs=3, momentum=0.8)), ratio=1.0)",
            "FedPara(SCAFFOLD(LocalSGD(0.2, epochs=4), up=BF16()), rank=12, start='weights')",
            "FedPara(FedAvg(LocalSGD(0.2, epochs=3), opt=Adam(0.03)), rank=6)",
            "LUAR(FedPara(FedAvg(LocalSGD(0.1, epochs=3, momentum=0.8)), rank=4), recycle=1, layers='tensors')",
        ),
        refused={
            "FedPara(FedAvg(), ratio=0.0)": "FedPara(ratio=0.0): ratio must be above 0 and at most 1",
            "FedPara(FedAvg(), ratio=1.5)": "FedPara(ratio=1.5): ratio must be above 0 and at most 1",
            "FedPara(FedAvg(), rank=0)": "FedPara(rank=0): rank must be at least 1, or None",
            "FedPara(FedPara(FedAvg()))": "FedPara over FedPara: the weights are products already",
            "FedPara(LUAR(FedPara(FedAvg()), 1))": "FedPara over FedPara: the weights are products already",
        },
        golden={"fedpara": "FedPara(FedAvg(LocalSGD(lr=0.2, batch=16, momentum=0.6)), rank=4)"},
    ),
    Method(
        "PruneFL",
        trained=(
            "PruneFL(FedAvg(), every=2)",
            "PruneFL(FedAvg(opt=Adam(0.03), up=ErrorFeedback(TopK(0.3))), every=3, share=0.5, initial=1, batch=8)",
            "LUAR(PruneFL(FedAvg(), every=2, share=0.5), recycle=1)",
        ),
        same={
            f"PruneFL that prunes nothing is its inner method: {why}": (f"PruneFL({inner}, {arguments})", inner)
            for why, inner, arguments in (
                ("never asked", "FedAvg()", "every=1000"),
                ("nothing may go", "FedAvg()", "every=2, share=0.0"),
                ("everything is worth its bytes", "FedAvg()", "every=2, initial=1, least=1.0"),
                ("with an optimiser", "FedAvg(opt=Adam(0.03), weights='uniform')", "every=2, share=0.0"),
                ("with error feedback", "FedAvg(up=ErrorFeedback(TopK(0.2)))", "every=2, share=0.0"),
            )
        },
        refused={
            "PruneFL(FedAvg(), every=0)": "PruneFL(every=0): every must be at least 1",
            "PruneFL(FedAvg(), share=1.0)": "PruneFL(share=1.0): share must be at least 0 and below 1",
            "PruneFL(FedAvg(), least=0.0)": "PruneFL(least=0.0): least must be above 0 and at most 1",
            "PruneFL(FedAvg(), overhead=-1.0)": "PruneFL(overhead=-1.0): overhead must not be negative or infinite",
            "PruneFL(FedAvg(), initial=-1)": "PruneFL(initial=-1): initial must not be negative",
            "PruneFL(FedAvg(), batch=0)": "PruneFL(batch=0): batch must be positive, or None",
            "PruneFL(LUAR(FedAvg(), 1))": (
                "PruneFL goes inside of LUAR, not around it: LUAR(PruneFL(FedAvg(), every=50), recycle=1)"
            ),
            "PruneFL(FLSS(FedAvg()), 20)": (
                "PruneFL does not go around FLSS, nor FLSS around PruneFL: leave one of the two"
            ),
            "PruneFL(SCAFFOLD())": (
                "PruneFL goes around FedAvg and what its arguments make of it (FedProx, FedAdam, FedAvgSM, local "
                "momentum); SCAFFOLD keeps or sends more than the model, which would not be pruned"
            ),
            "PruneFL(FedAvg(down=Half()))": (
                "PruneFL(FedAvg(down=Half())): which entries are kept is read off the model that is sent, so it must "
                "not lose anything: leave down at its default"
            ),
        },
        golden={"prunefl": f"PruneFL(FedAvg({GOLD}), every=2, share=0.5)"},
    ),
    Method(
        "FedPer",
        trained=(
            "FedPer()",
            "FedPer(stay=('1.*', '*.bias'), opt=Adam(0.03), up=ErrorFeedback(TopK(0.3)), down=EF21(TopK(0.5)))",
            "FedPer(up=LBGM(threshold=0.5), buffers='local')",
            "LUAR(FedPer(opt=Adam(0.03)), recycle=1, layers='tensors')",
        ),
        same={
            "FedPer with nothing at home is FedAvg": ("FedPer(stay=())", "FedAvg()"),
            "so it is over links and servers": (
                f"FedPer(stay=(), opt=Adam(0.03), up={LOSSY})",
                f"FedAvg(opt=Adam(0.03), up={LOSSY})",
            ),
            "LUAR that recycles nothing leaves FedPer as it is": ("LUAR(FedPer(), recycle=0)", "FedPer()"),
        },
        refused={
            "FedPer(stay=('head.*',))": (
                "FedPer(stay=...): no layer is named 'head.*'; the layers are 1.weight, 1.bias, 3.weight, 3.bias"
            ),
            "FedPer(stay=('*',))": "FedPer: every layer stays with its client, nothing would be sent",
            "LUAR(FedPer(), recycle=1)": "LUAR(recycle=1): at most 0, the model has 1 kernels and one must be sent",
            "FLSS(FedPer(), rank=2, start=2)": "...FedPer gives clients models of their own, which do not lie there",
        },
        payload={
            # the first module's 780 parameters: 3120 bytes, and 12
            "FedPer()": (3132, 3132),
            "FedPer(up=Half())": (1576, 3132),
        },
    ),
    Method(
        "FedRep",
        trained=("FedRep(head_epochs=2)", "FedRep(LocalAdam(0.01), stay=('*.bias',), head_epochs=1.5)"),
        refused={
            "FedRep(head_epochs=0)": "FedRep(head_epochs=0.0): head_epochs must be positive",
            "FedRep(LocalSGD(momentum=0.9, keep=True))": (
                "FedRep trains head and body in turn, and the momentum of one is none of the other: use keep=False"
            ),
        },
        payload={"FedRep()": (3132, 3132)},
    ),
    Method(
        "FedBN",
        trained=("FedBN(stay=('2.*',))", "FedBN(stay=('2.*', '4.*'), opt=Adam(0.03), up=ErrorFeedback(TopK(0.3)))"),
        refused={
            "FedBN(stay=('*',))": "FedBN: every layer stays with its client, nothing would be sent",
        },
        payload={"FedBN()": (3652, 3652)},
    ),
    Method(
        "Ditto",
        trained=(
            "Ditto(lam=0.5)",
            "Ditto(LocalAdam(0.02), opt=Adam(0.03), up=ErrorFeedback(TopK(0.3)), lam=0.5)",
            "LUAR(Ditto(LocalSGD(lr=0.2, momentum=0.6, keep=True)), recycle=1)",
        ),
        same={
            "Ditto's shared model is FedAvg's": ("Ditto(lam=0.5)", "FedAvg()"),
            "Ditto's is FedAvg's over links and servers too": (
                f"Ditto(opt=Adam(0.03), up={LOSSY}, lam=2.0)",
                f"FedAvg(opt=Adam(0.03), up={LOSSY})",
            ),
            "Ditto's shared model is FedProx's where local pulls": ("Ditto(LocalSGD(prox=0.3))", "FedProx(mu=0.3)"),
        },
        refused={"Ditto(lam=-1)": "Ditto(lam=-1.0): lam must not be negative"},
        payload={"Ditto()": (3652, 3652)},
    ),
    Method(
        "APFL",
        trained=(
            "APFL(alpha=0.5)",
            "APFL(LocalSGD(lr=0.3, momentum=0.5), adaptive=True, up=LBGM(threshold=0.5))",
            "LUAR(APFL(alpha=1.0, opt=Adam(0.03)), recycle=1)",
        ),
        same={
            "APFL's shared model is FedAvg's": ("APFL(alpha=0.5)", "FedAvg()"),
            "so it is where alpha is learnt": ("APFL(adaptive=True, opt=Yogi(0.03))", "FedAvg(opt=Yogi(0.03))"),
            "and where nothing is mixed in": ("APFL(alpha=0.0)", "FedAvg()"),
        },
        refused={
            "APFL(alpha=1.5)": "APFL(alpha=1.5): alpha must be in [0, 1]",
            "APFL(LocalAdam())": (
                "APFL takes a step of v as alpha times one of the mixture, which those of LocalAdam are not: use "
                "LocalSGD"
            ),
        },
        payload={"APFL()": (3652, 3652)},
    ),
    Method(
        "PerFedAvg",
        trained=("PerFedAvg(alpha=0.1)", "PerFedAvg(alpha=0.1, hessian='HF', delta=0.01, up=ErrorFeedback(TopK(0.3)))"),
        by_hand={
            f"PerFedAvg({TWICE}, alpha=0.2)": [[0.5768, -0.6052], [0.64180352, -0.29946688]],
            f"PerFedAvg({TWICE}, alpha=0.2, hessian='HF', delta=0.5)": [
                [0.561952, -0.757072],
                [0.6162279, -0.54786629],
            ],
        },
        refused={
            "PerFedAvg(alpha=-0.1)": "PerFedAvg(alpha=-0.1): alpha must not be negative",
            "PerFedAvg(delta=0)": "PerFedAvg(delta=0.0): delta must be positive",
            "PerFedAvg(hessian='exact')": "PerFedAvg(hessian='exact'): one of 'FO', 'HF' is expected",
            "PerFedAvg(LocalSGD(momentum=0.9))": "...its steps are of plain SGD; use LocalSGD(0.05)",
            "PerFedAvg(LocalAdam(0.1))": "...its steps are of plain SGD; use LocalSGD(0.1)",
        },
        payload={"PerFedAvg()": (3652, 3652)},
    ),
    Method(
        "SoftPull",
        trained=(
            "SoftPull(FedAvg(), lam=0.6)",
            "SoftPull(SCAFFOLD(up=LBGM(threshold=0.5)), lam=0.7, personal=EF21(TopK(0.3)))",
        ),
        by_hand={
            # the mean of the models: each begins where the mean is, and pulling leaves the mean where it is
            f"SoftPull(FedAvg({TWICE}), lam=0.7)": [[0.595, -0.46], [0.67195, -0.1144]],
        },
        refused={
            "SoftPull(lam=1.5)": "SoftPull(lam=1.5): lam must be in [0, 1]",
            "SoftPull(Ditto())": "SoftPull over Ditto: its clients have models of their own already",
            "SoftPull(LUAR(FedAvg(), recycle=1))": (
                "SoftPull over LUAR: its clients make their view of every broadcast they have heard, and here each is "
                "sent a model of its own"
            ),
            "SoftPull(FedAvg(down=EF21(TopK(0.1))))": (
                "SoftPull over a method with down=EF21(): no model is sent to everyone; leave down at "
                "Dense() and give SoftPull a link for single clients, such as personal=EF21(TopK(0.1))"
            ),
            "SoftPull(personal=TopK(0.1))": "personal=TopK(0.1) cannot carry a message to one client:...",
            "LUAR(SoftPull(), recycle=1)": "LUAR needs a reply with an update of the model;...has none",
            "FLSS(SoftPull(), rank=2, start=2)": "FLSS sends coefficients in a subspace of the shared updates...",
        },
        payload={
            # 3640 bytes of a model and 12; down the empty broadcast, of 3 bytes, too
            "SoftPull()": (3652, 3655),
            "SoftPull(personal=Half())": (3652, 1845),
        },
    ),
    Method(
        "FedSM",
        trained=(
            "FedSM(lam=0.6)",
            "FedSM(LocalAdam(0.02, batch=8), form='epoch', up=ErrorFeedback(TopK(0.3)), personal=EF21(TopK(0.3)))",
            "LUAR(FedSM(weights='steps'), recycle=1)",
            "FedSM(personal=FT(FedAvg(), epochs=1.0), up=ErrorFeedback(TopK(0.3)))",
            "FedSM(form='epoch', personal=APFL(adaptive=True), down=EF21(TopK(0.3)))",
            "FedSM(opt=Adam(0.03), personal=Ditto(opt=Adam(0.03), lam=1.0), up=ErrorFeedback(TopK(0.3)))",
            "FedSM(LocalAdam(0.02), personal=PerFedAvg(alpha=0.1), up=LBGM(threshold=0.5))",
            "FedSM(personal=pFedMe(lam=2.0, eta=0.25), weights='uniform')",
            "LUAR(FedSM(personal=pFedMe(lam=2.0, eta=0.25, opt=Adam(0.03)), opt=Adam(0.03)), recycle=1)",
        ),
        payload={
            # 3640 bytes of a model, and 18720 of a selector with an output for each of eight clients, and structure
            "FedSM(personal=FT(FedAvg()))": (22384, 22384),
            "FedSM(personal=Ditto())": (26032, 22384),
            "FedSM(personal=pFedMe())": (29684, 26040),
        },
        refused={
            "FedSM(personal=FedAvg())": (
                "FedSM(personal=FedAvg()): FedAvg leaves no model with its clients; take FT(FedAvg()), APFL(), "
                "Ditto(), PerFedAvg() or pFedMe(), or for SoftPull a link such as personal=Dense()"
            ),
            "FedSM(personal=SoftPull())": "...SoftPull leaves no model with its clients;...",
            "FedSM(lam=0.5, personal=Ditto())": (
                "FedSM(personal=Ditto(lam=0.1)): lam=0.5 is SoftPull's, in whose place the method is; leave lam out"
            ),
            "FedSM(personal=Ditto(up=Half()))": (
                "FedSM(personal=Ditto(up=Half(), lam=0.1)): messages are FedSM's, so up=Half() has to be given to "
                "FedSM and left out of the method"
            ),
            "FedSM(personal=FT(FedAvg(weights='uniform')))": "...so weights='uniform' has to be given to FedSM...",
            "FedSM(personal=pFedMe(LocalSGD(keep=True)))": (
                "...a client keeps what the trainer of the global model remembers, and this is another; leave keep at "
                "False, or give both the same local"
            ),
            "FedSM(personal=FedPer())": (
                "FedSM(personal=FedPer()): the method has to send one whole model each way, as FedAvg does; FedPer "
                "sends something else"
            ),
            "FedSM(personal=FT(SCAFFOLD()))": "...as FedAvg does; FT sends something else",
            "FedSMExtra(personal=Ditto())": (
                "FedSMExtra(personal=Ditto(lam=0.1)): its selector is trained on the losses of models that the server "
                "sends to all, which are SoftPull's; give personal a link, or take FedSM"
            ),
            "FedSM(lam=-0.1)": "FedSM(lam=-0.1): lam must be in [0, 1]",
            "FedSM(gamma=2)": "FedSM(gamma=2.0): gamma is a share, 0 to 1",
            "FedSM(selecting=LocalAdam(keep=True))": "FedSM(selecting=...leave keep at False",
            "FedSM(form='epoch', selecting=LocalSGD(0.1))": (
                "FedSM(form='epoch') averages the moments of Adam, which LocalSGD has not: use "
                "selecting=LocalAdam(0.001)"
            ),
            "FedSM(selector='resnet19')": "no model 'resnet19'...",
            "SoftPull(FedSM())": "SoftPull over FedSM: its clients have models of their own already",
            "FLSS(FedSM(), rank=2, start=2)": "FLSS sends coefficients in a subspace of the shared updates...",
        },
    ),
    Method(
        "FedSMExtra",
        trained=(
            "FedSMExtra(lam=0.6, start=4)",
            "FedSMExtra(lam=0.6, form='epoch', start=3, up=ErrorFeedback(TopK(0.5)))",
        ),
        refused={
            "FedSMExtra(start=0)": "FedSMExtra(start=0): start must be at least 1",
            "FedSMExtra(gamma=0.5)": ("FedSMExtra(gamma=0.5): the selector has an output for the global model itself"),
            "LUAR(FedSMExtra(), recycle=1)": (
                "LUAR over FedSMExtra: its server keeps models that stand still while the selector is trained, which a "
                "layer that is recycled and not sent would put out of step"
            ),
        },
    ),
    Method("Ensemble", trained=("Ensemble(lam=0.6, start=4, personal=EF21(TopK(0.3)))",)),
    Method(
        "pFedMe",
        trained=(
            "pFedMe(lam=2.0, eta=0.25)",
            "pFedMe(LocalSGD(lr=0.1, momentum=0.5, keep=True), opt=SGD(1.5), up=LBGM(threshold=0.5), lam=5.0, eta=0.1)",
        ),
        by_hand={
            f"pFedMe({TWICE}, lam=2.0, eta=0.25, steps=2)": [[0.5813875, -0.5584], [0.64952715, -0.24680704]],
            # theta is a step of SGD from w, and w goes all the way there: FedAvg's first round on these quadratics
            f"pFedMe({TWICE}, lam=0.5, eta=2.0, steps=1, weights='examples')": [[0.595, -0.37], [0.67195, 0.0332]],
        },
        refused={
            "pFedMe(lam=0)": "pFedMe(lam=0.0): lam must be positive",
            "pFedMe(eta=-1)": "pFedMe(eta=-1.0): eta must be positive",
            "pFedMe(steps=0)": "pFedMe(steps=0): steps must be at least 1",
            "pFedMe(LocalSGD(prox=0.1))": "...pFedMe pulls by its own lam; leave prox at 0",
        },
        payload={"pFedMe()": (3652, 3652)},
    ),
    Method(
        "FT",
        trained=(
            "FT(FedAvg(), epochs=2.0)",
            "FT(SCAFFOLD(LocalSGD(lr=0.3)), epochs=0.5)",
            "LUAR(FT(FedProx(mu=0.1)), recycle=1)",
        ),
        same={
            f"FT leaves {inner} as it is": (f"FT({inner}, epochs=3.0)", inner)
            for inner in ("FedAvg()", "SCAFFOLD()", f"FedAvg(opt=Adam(0.03), up={LOSSY})")
        },
        refused={"FT(FedAvg(), epochs=0)": "FT(epochs=0.0): epochs must be positive"},
        payload={"FT(FedAvg())": (3652, 3652)},
    ),
]
