"""Which specs each setting of run.py is trained with: the systems as they come,
and what the runs have shown to be better. Behind a blank stand options of `thinwire train`."""

AS_THEY_COME = [
    "dense", "half", "casq:bits=4", "casq", "casq:topology=all_gather", "power_sgd:rank=16", "power_sgd:rank=4",
    "qsgd:bits=4", "top_k:ratio=0.05+zen", "top_k:ratio=0.01+zen", "sketched_sgd", "ef_signsgd",
    "marsit:full_every=100",
]

# For matrices under AdamW: a tenth, a 25th and an 80th of dense's bytes with 4 ranks.
LOW_RANK_IN_CODES = ["power_sgd:rank=32:bits=8", "power_sgd:rank=15:bits=8", "power_sgd:rank=7:bits=4"]
# About a 50th and an 80th to 100th, the factors in an entropy code.
LOW_RANK_IN_ENTROPY_CODE = ["power_sgd:rank=20:step=0.3", "power_sgd:rank=12:step=0.5"]
# About as many bytes, with a beginning in which every element travels in 4 bits.
CODES_FIRST = "warm_up:steps=30:with=blocks/bits=4/block=128+"
LOW_RANK_AFTER_CODES = [
    CODES_FIRST + "power_sgd:rank=29:bits=8", CODES_FIRST + "power_sgd:rank=12:bits=8",
    "warm_up:steps=15:with=blocks/bits=4/block=128+power_sgd:rank=5:bits=4",
]
# About as many bytes as the latter two of low rank, with more rank and fewer bits.
MORE_RANK = ["power_sgd:rank=28:bits=4", "power_sgd:rank=9:bits=3"]
# As many bytes as those, by one factor of twice the rank in a step.
ONE_FACTOR = ["acp_sgd:rank=64:bits=8", "acp_sgd:rank=32:bits=8", "acp_sgd:rank=18:bits=4"]
IN_BLOCKS = ["blocks:bits=8", "blocks:bits=4:block=128", "blocks:bits=3:block=128"]

# Equal steps in an entropy code: each block's own, one for all of an owner's part, and between.
ENTROPY_CODED = ["ecsq", "ecsq:local=0"]
OTHER_STEPS = [
    "ecsq:step=0.1", "ecsq:step=0.2", "ecsq:local=0.5", "ecsq:local=0.75",
    "warm_up:steps=50:with=ecsq/step=0.2+ecsq",
]

# The same along the main directions of each matrix.
KLT = ["klt", "klt:step=0.7", "klt:step=2"]

# What auto chooses on a slow link, and what it may choose.
AUTO = "auto:link=100Mbit:50us"
AUTO_WITH_MORE_BUDGET = "auto:link=100Mbit:50us:budget=0.75"
HALF = ["half:feedback=on", "half:format=bf16:feedback=on"]

# Whether a milder beginning, exact vectors, a residual that fades or a gathered mean bring the loss back.
BEGUN_IN_CODES = "warm_up:steps=50:with=blocks/bits=4/block=128+"
REMEDIES = [
    "warm_up:steps=50+casq:bits=4", BEGUN_IN_CODES + "casq:bits=4", "warm_up:steps=50+top_k:ratio=0.05+zen",
    "warm_up:steps=50+casq", "warm_up:steps=50+whole+casq", "warm_up:steps=50+casq:topology=all_gather",
    "warm_up:steps=30+top_k:ratio=0.01:ramp_steps=60+zen", "decay:factor=0.99+top_k:ratio=0.01+zen",
]
# The same beginning for the systems that lose most as they come.
BEGUN_WITHOUT_SIGNS = [BEGUN_IN_CODES + system for system in (
    "marsit:full_every=100", "marsit:full_every=8", "ef_signsgd", "sketched_sgd:lr_after=on")]
GUARDED = [f"guard:noise=0.75+{spec}" for spec in (
    "casq", "casq:bits=4", "power_sgd:rank=7:bits=4", "power_sgd:rank=32:bits=8")]

# Those that are made for Adam. They do not bear that their mean is clipped.
MADE_FOR_ADAM = [
    "dense --clip 0", "one_bit_adam:freeze=100 --clip 0", "zero_one_adam --clip 0",
    "warm_up:steps=50+zero_one_adam --clip 0",
] + [f"demo --optimizer sgd --lr {rate} --clip 0" for rate in ("0.0003", "0.001", "0.003")]
# Whether clipping is what goes wrong: each worker clips its own gradient, and the mean is not clipped.
CLIPPED_FIRST = [f"clip+{spec} --clip 0" for spec in (
    "dense", "casq", "casq:bits=4", "top_k:ratio=0.05+zen", "top_k:ratio=0.01+zen", "power_sgd:rank=7:bits=4",
    "sketched_sgd", "momentum+casq:bits=4", "one_bit_adam:freeze=50", "one_bit_adam:freeze=100",
    "warm_up:steps=50+casq", "warm_up:steps=50+top_k:ratio=0.05+zen", BEGUN_IN_CODES + "marsit:full_every=8",
    BEGUN_IN_CODES + "ef_signsgd")]
# Whether a worker's own gradient wants a larger limit than the mean: sqrt(W) times as much.
CLIPPED_ALONE = ["clip+dense --clip 0", "clip:norm=2+dense --clip 0"]


def signs_of_momentum(steps: int, clip: str = "clip") -> str:
    """Adam's momentum in one bit per element, after so many steps in which every element travels in 4."""
    return f"{clip}+warm_up:steps={steps}:with=blocks/bits=4/block=128+one_bit_adam:freeze=1 --clip 0"


# Whether dense gains by a larger rate what signs of the momentum gain, whose variance stands still.
MORE_RATE = ["dense --lr 0.004"]

# The same, but that Adam's variance moves in steps ever further apart.
VARIANCE_MOVES = "clip+warm_up:steps=39:with=blocks/bits=4/block=128+zero_one_adam:kappa=4 --clip 0"

# Whether one ratio for all layers, or the words' table, is what top-k loses by. Each parameter is a bucket.
BY_LAYER = [
    "top_k:ratio=0.05+zen --bucket-mb 0.001", "whole:names=words.*+top_k:ratio=0.05+zen",
    "decay:factor=0.999+top_k:ratio=0.01+zen",
]
MARSIT_WITH_ADAM = [
    # The recipe that keeps the accuracy of images.
    "marsit:full_every=2",
    "marsit:full_every=8", "marsit:full_every=2:eta_factor=1 --local-steps 4",
    # Full steps by the residual's length in place of a count.
    "marsit:full_every=0:full_above=1", "marsit:full_every=0:eta_factor=3:full_above=2",
]
# Momentum before what is sent. Its mean does not bear clipping.
MOMENTUM_INSIDE = ["clip+momentum+marsit:full_every=100 --clip 0", "clip+momentum+ef_signsgd --clip 0"]

# With momentum: each paper's system with the stages or options that keep the accuracy.
WITH_MOMENTUM = [
    "power_sgd:rank=32:bits=8", "power_sgd:rank=16:bits=8", "blocks:bits=8",
    "warm_up:steps=50+top_k:ratio=0.05+zen", "warm_up:steps=50+top_k:ratio=0.05+s2_reducer:lambda=exact",
    "warm_up:steps=50+casq:bits=4", "sketched_sgd:ratio=0.05:p=4:columns_ratio=0.05", "marsit:full_every=2",
    "warm_up:steps=50+top_k:ratio=0.01+zen", "warm_up:steps=50+top_k:ratio=0.01+s2_reducer:lambda=exact",
]

# Each paper's system in a form nearer to the paper's, with momentum: CASQ's clusters of each worker's own,
# from all to all; Marsit's local steps, beside dense's; Sketched-SGD's and Deep Gradient Compression's
# momentum in front of the selection, of which the second is what Zen's paper sends; S2 Reducer's sketch of
# blocks.
NEARER_TO_THE_PAPERS = [
    "casq:bits=3:interval=1:topology=all_gather:clusters=own:feedback=off",
    "dense --local-steps 4", "marsit:full_every=100 --local-steps 4",
    "sketched_sgd:ratio=0.05:p=4:rows=5:columns_ratio=0.05:momentum=0.9 --momentum 0",
    "block_top_k:ratio=0.03125+s2_reducer:lambda=1", "mc:momentum=0.9+top_k:ratio=0.05+zen --momentum 0",
]

# The optimizer of each worker inside, as Marsit's paper has it.
LOCAL_STEPS = [
    "dense", "dense --local-steps 1", "dense --local-steps 4", "dense --local-steps 4 --outer-rate 1.5",
    "marsit:full_every=8", "marsit:full_every=8:eta_factor=1 --local-steps 1",
    "marsit:full_every=8:eta_factor=3 --local-steps 1", "marsit:full_every=8 --local-steps 1",
    "marsit:full_every=2:eta_factor=1 --local-steps 4",
] + [f"{spec} --local-steps 4" for spec in (
    # Those of its table of BERT, after 50 synchronizations.
    "signsgd", "ef_signsgd:topology=ring", "ssdm:topology=ring", "marsit:full_every=25", "marsit:full_every=50",
    "marsit:full_every=0")] + [
        # Whether SSDM bears a smaller rate.
        f"ssdm:topology=ring --local-steps 4 --lr {rate}" for rate in ("0.0002", "0.00002", "0.000002")]

RECIPES = {
    "transformer-kjv": (
        AS_THEY_COME + LOW_RANK_IN_CODES + [BEGUN_IN_CODES + "casq:bits=3"] + LOW_RANK_AFTER_CODES + MORE_RANK
        + ONE_FACTOR + IN_BLOCKS + [AUTO, AUTO_WITH_MORE_BUDGET] + HALF + REMEDIES + BEGUN_WITHOUT_SIGNS + GUARDED
        + MADE_FOR_ADAM + CLIPPED_FIRST
        + [signs_of_momentum(99), signs_of_momentum(39), signs_of_momentum(99, "clip:norm=2"), VARIANCE_MOVES] + MORE_RATE
        + MARSIT_WITH_ADAM + BY_LAYER + ENTROPY_CODED + OTHER_STEPS + KLT + LOW_RANK_IN_ENTROPY_CODE),
    "transformer-wikitext2": (
        ["dense"] + LOW_RANK_IN_CODES + LOW_RANK_AFTER_CODES + [AUTO]
        + [signs_of_momentum(99), signs_of_momentum(99, "clip:norm=2"), signs_of_momentum(39)]
        + [signs_of_momentum(39, "clip:norm=2"), signs_of_momentum(39) + " --lr 0.001"] + MORE_RATE
        + ["guard:noise=0.75+power_sgd:rank=32:bits=8", "ecsq", "klt", "klt:step=0.7"]),
    "transformer-wikitext2-slower": (
        AS_THEY_COME + LOW_RANK_IN_CODES + IN_BLOCKS + ["klt", "klt:step=0.7", AUTO] + LOW_RANK_IN_ENTROPY_CODE),
    "transformer-markov": (
        ["dense", "casq:bits=4", "blocks:bits=4:block=128", AUTO, AUTO_WITH_MORE_BUDGET]
        + [BEGUN_IN_CODES + "casq:bits=3"] + LOW_RANK_IN_CODES + LOW_RANK_AFTER_CODES + CLIPPED_ALONE
        + [signs_of_momentum(99), signs_of_momentum(249)]
        + [signs_of_momentum(steps, "clip:norm=2") for steps in (99, 39, 19)] + MORE_RATE + ["ecsq:step=1:local=0"]
        + ENTROPY_CODED + KLT),
    # A text that had no part in finding these.
    "transformer-code": ["dense"] + LOW_RANK_IN_CODES + ["klt", "klt:step=0.7", "ecsq", "casq:bits=4", AUTO],
    "transformer-code-slower": (
        ["dense"] + LOW_RANK_IN_CODES + ["klt", "klt:step=0.7", AUTO, MORE_RANK[1], LOW_RANK_AFTER_CODES[2]]
        + LOW_RANK_IN_ENTROPY_CODE),
    "transformer-kjv-200": LOCAL_STEPS,
    "transformer-kjv-2000": (
        ["dense"] + LOW_RANK_IN_CODES + ["power_sgd:rank=40:bits=8", AUTO, "half", "blocks:bits=4:block=128"]
        + ["ecsq", "klt"]
        + ["warm_up:steps=50:with=ecsq/step=0.2+ecsq", signs_of_momentum(99), VARIANCE_MOVES]
        # Whether what rank 15 loses is lost in the first quarter alone.
        + ["warm_up:steps=500:with=blocks/bits=8+power_sgd:rank=15:bits=8"]
        # Whether a milder end brings back what was lost.
        + ["warm_up:steps=1700:with=ecsq/local=0+blocks:bits=8",
           "warm_up:steps=1800:with=ecsq/local=0.5+blocks:bits=8"]),
    "transformer-kjv-momentum": (
        AS_THEY_COME + LOW_RANK_IN_CODES + [AUTO, "half:format=bf16:feedback=on"] + ENTROPY_CODED + ["klt"]
        + [BEGUN_IN_CODES + "marsit:full_every=8", BEGUN_IN_CODES + "ef_signsgd"] + MOMENTUM_INSIDE
        + LOW_RANK_IN_ENTROPY_CODE),
    "cnn-fashion": AS_THEY_COME + WITH_MOMENTUM + ["klt", AUTO],
    "cnn-fashion-12": ["dense", "power_sgd:rank=32:bits=8", "power_sgd:rank=16:bits=8"],
    # At this rate and momentum one-bit systems diverge.
    "cnn-fashion-1": ["dense"] + [f"{guard}{system}" for system in ("marsit:full_every=100", "ef_signsgd")
                                  for guard in ("", "guard:noise=0.75+")],
    "cnn-fashion-sgd": ["dense", "half:format=bf16:feedback=on", "casq:bits=4", "power_sgd:rank=32:bits=8", AUTO],
    "resnet20-cifar10": (
        AS_THEY_COME + ["power_sgd:rank=12:bits=8", "power_sgd:rank=8:bits=4"] + WITH_MOMENTUM + NEARER_TO_THE_PAPERS),
    "lstm-kjv": ["dense"] + [f"rows=zen,dense={system}" for system in (
        "half", "casq:bits=4", "power_sgd:rank=16", "casq", AUTO)],
}
