"""Tables of what there is: a row says what is known, and tests are columns made of it.

``LINKS`` has a row for each link. ``tests/test_every_link.py`` reads it, and ``benchmarks/kernels.py`` measures what it
says.
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
    ``measured`` are settings for 11 million entries: their bytes, times and memory are in docs/links.md.
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
GROWS = "does not, and the residual would grow without bound"

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
            "TopK(0.5)": (2_144, 2_156),
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
            # both of two, which are alike: + and -, gaps 0 and 0, b = 0; of one and zero the one
            "STC(0.5)": (
                "01 0602 06044800410101410101410100 06044800410101410101410100 000000 00004040 01 03 0000 "
                "0000803f 01 01"
            ),
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
            # 12, 4 of norm, 250 of levels
            "QSGD(1)": (266, 278),
            "QSGD(7)": (516, 528),
            "QSGD(16)": (1_016, 1_032),
            # 12, 40 of norms, 1,000
            "QSGD(16, bucket=100)": (1_052, 1_064),
            "QSGD(3, bucket=64, norm='max')": (576, 588),
        },
        ties={
            # +-3 of 3 are 2 and 0, +1 and 0 of 1 are 2 and 1, two bits each
            "QSGD(1, norm='max')": "01 0602 0602480101410101 0602480101410101 00 00004040 02 000000 0000803f 06",
            "QSGD(1, bucket=2, norm='max')": (
                "01 0602 0602480101410101 0602480101410101 00 00004040 02 000000 0000803f 06"
            ),
        },
        floats={
            "QSGD(16)": 1 + 200 + 1 + 50,
            "QSGD(7, bucket=100)": 8 + 100 + 2 + 25,
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
            # 11, 1 of padding, 4 of scale, 200 of digits
            "Ternary()": (216, 228),
        },
        ties={"Ternary()": "01 0602 06024800410101 06024800410101 000000 00004040 02 000000 0000803f 05"},
        floats={"Ternary()": 1 + 160 / 4 + 1 + 40 / 4},
        unbiased={"Ternary()": 0.025 * 20},
        measured=("Ternary()",),
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
            "Flat(STC(0.5))": "01 0604 4800 410101 410101 410100 0000 00004040 01 03",
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
        "LBGM",
        laws={
            "LBGM(threshold=0.2)": (1_420, "cm"),
            "LBGM(threshold=1.0)": (1_420, "m"),
            "LBGM(TopK(0.1), threshold=0.4)": (370, "m"),
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
            "Partition({'<500': Dense(), '>=500': Ternary()})": (220, 984),
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
