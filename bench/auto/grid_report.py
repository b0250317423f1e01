"""The grid's table: `auto` beside plain DDP and the best fixed candidate, cell by cell."""

import collections
import math
import statistics

# Asked of every cell: a step of auto over that of the best fixed candidate, and over plain DDP's.
OF_BEST = 1.03
OF_PLAIN = 1.01
RATES = ("10Mbit", "100Mbit", "1Gbit", "10Gbit", "loopback")
WORKERS = (2, 4)
MODELS = ("cnn", "transformer", "rows", "wide")
# Of half precision auto tried fp16 before; cells of that time have it.
HALVES = ("half:format=bf16:feedback=on", "half:feedback=on")
CANDIDATES = ("dense", *HALVES, "power_sgd:rank=32:bits=8")
ROW_SCHEMES = ("centralization", "push_pull")


def key(cell: dict) -> tuple:
    """What tells a cell from others. Older ones do not name the last two."""
    named = cell["rate"], cell["workers"], cell["model"]
    return *named, cell.get("accumulate", 1), cell.get("scaler", False)


def model_of(cell: dict) -> str:
    *_, model, accumulate, scaler = key(cell)
    return model + f", {accumulate} batches a step" * (accumulate > 1) + ", loss scale" * scaler


def choice_of(auto: dict) -> str:
    """What auto chose last, by its reasons: a candidate's name comes first in that of a choice."""
    for _, reason in reversed(auto["changes"]):
        for name in CANDIDATES:
            if reason.startswith((name + ". ", name + ", as in")):
                return f"`{name}`"
            if reason.startswith(name + " ("):  # some buckets are dense's
                return f"`{name}` {reason[len(name) + 1:reason.index(')') + 1]}"
    return "none"


def of_rows(auto: dict) -> str:
    """By which of zen's schemes its rows went in the last step."""
    return ", ".join(f"`{scheme}`" for scheme in auto["schemes"] if scheme in ROW_SCHEMES) or "-"


def ratio(ways: dict, one: str, other: str):
    """Of the ratio of two ways' blocks, which came beside each other: median, lower and upper quartile."""
    ratios = sorted(a / b for a, b in zip(ways[one]["block_seconds"], ways[other]["block_seconds"]))
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return statistics.median(ratios), quartiles[0], quartiles[2]


def step_of(way: dict) -> float:
    return statistics.median(way["block_seconds"])


def judge(cell: dict) -> dict:
    """What the table says of a cell."""
    ways = {way["way"]: way for way in cell["ways"]}
    plain = ways["plain"]
    # What plain DDP itself changes by, with another order of examples.
    noise_of_error = abs(ways["plain:again"]["error"] - plain["error"])
    allowed = cell["allowed"] + noise_of_error
    keeps = [
        name
        for name in ("plain", *CANDIDATES)
        if name in ways and ways[name]["error"] - plain["error"] <= allowed
    ]
    best = min(keeps, key=lambda name: step_of(ways[name]))
    of_plain, of_best, noise = (
        ratio(ways, "auto", "plain"),
        ratio(ways, "auto", best),
        ratio(ways, "plain:again", "plain"),
    )
    # How well the median of so many blocks is known, by two equal ways.
    spread = (noise[2] - noise[1]) / math.sqrt(len(plain["block_seconds"]))
    # One that is fast because it gave up the loss is not within anything.
    keeps_within_noise = ways["auto"]["error"] - plain["error"] <= allowed
    return {
        "ways": ways,
        "best": best,
        "of_plain": of_plain,
        "of_best": of_best,
        "noise": noise,
        "spread": spread,
        "within_plain": of_plain[0] <= OF_PLAIN + spread,
        "is_within_plain": of_plain[0] <= OF_PLAIN,
        "is_within_best": keeps_within_noise and of_best[0] <= OF_BEST,
        "dense_of_plain": ratio(ways, "dense", "plain")[0] if "dense" in ways else None,
        "within_best": keeps_within_noise and of_best[0] <= OF_BEST + spread,
        "keeps": ways["auto"]["error"] - plain["error"] <= cell["allowed"],
        "keeps_within_noise": keeps_within_noise,
    }


def spread_text(three) -> str:
    return f"{three[0]:.2f} ({three[1]:.2f}-{three[2]:.2f})"


def row(cell: dict) -> list:
    found = judge(cell)
    ways = found["ways"]
    plain, auto = ways["plain"], ways["auto"]
    digits = 3 if cell["unit"] == "nats" else 2
    half = next((name for name in HALVES if name in ways), HALVES[0])
    fixed = [
        f"{step_of(ways[name]) * 1e3:,.0f}" if name in ways else "-"
        for name in ("fp16_hook", "power_sgd_hook", "dense", half, "power_sgd:rank=32:bits=8")
    ]
    return [
        cell["rate"],
        str(cell["workers"]),
        model_of(cell),
        f"{step_of(plain) * 1e3:,.0f}",
        *fixed,
        f"{step_of(auto) * 1e3:,.0f}",
        choice_of(auto),
        of_rows(auto),
        spread_text(found["noise"]),
        spread_text(found["of_plain"]),
        f"{spread_text(found['of_best'])} `{found['best'].split(':')[0]}`",
        f"{plain['error']:.{digits}f} {cell['unit']}",
        f"{ways['plain:again']['error'] - plain['error']:+.{digits}f}",
        f"{auto['error'] - plain['error']:+.{digits}f}",
    ]


HEAD = [
    "link",
    "ranks",
    "model",
    "plain DDP, ms",
    "fp16 hook",
    "PowerSGD hook",
    "`dense`",
    "`half`",
    "`power_sgd`",
    "`auto`",
    "what it chose last",
    "rows by",
    "plain again over plain",
    "auto over plain",
    "auto over the best fixed",
    "plain's error",
    "plain again's minus it",
    "auto's minus it",
]


def missing(cells: list) -> list:
    """Cells of the whole grid that were not run."""
    there = {(cell["rate"], cell["workers"], cell["model"]) for cell in cells}
    grid = [(rate, workers, model) for rate in RATES for workers in WORKERS for model in MODELS]
    return [f"{rate}, {workers} ranks, {model}" for rate, workers, model in grid
            if (rate, workers, model) not in there]


def in_lines(words: list, first: str) -> list:
    lines = [first]
    for word in words:
        if len(lines[-1]) + len(word) > 105:
            lines.append(" ")
        lines[-1] += " " + word
    return lines


def of_dense(found: list) -> list:
    ratios = [one["dense_of_plain"] for one in found if one["dense_of_plain"] is not None]
    if not ratios:
        return []
    few = sum(one <= OF_PLAIN for one in ratios)
    return [f"- `dense` over plain DDP: {statistics.median(ratios):.2f} in the median of cells, "
            f"{max(ratios):.2f} at most, at most {OF_PLAIN} in {few} of {len(ratios)}."]


def of_builds(cells: list) -> str:
    builds = collections.Counter(cell.get("commit") for cell in cells)
    return ", ".join(
        f"{count} of commit {build}" if build else f"{count} of no recorded commit"
        for build, count in builds.most_common()
    )


def largest_noise(cells: list) -> str:
    largest: dict = {}
    for cell in cells:
        ways = {way["way"]: way for way in cell["ways"]}
        noise = abs(ways["plain:again"]["error"] - ways["plain"]["error"])
        largest[cell["unit"]] = max(noise, largest.get(cell["unit"], 0))
    return " and ".join(f"{noise:.{3 if unit == 'nats' else 2}f} {unit}" for unit, noise in sorted(largest.items()))


def page(cells: list) -> str:
    found = [judge(cell) for cell in cells]
    absent = missing(cells)

    def count(key):
        return f"{sum(one[key] for one in found)} of {len(found)}"

    rows = [HEAD, ["---"] * len(HEAD)] + [row(cell) for cell in cells]
    return "\n".join(
        [
            "# auto on a grid of links, models and ranks",
            "",
            "Milliseconds of a step: medians over blocks of steps that ways took in turns,",
            "after 30 steps of each that do not count.",
            "Ratios are medians over rounds of one block each, with quartiles.",
            "`plain again` is plain DDP a second time, with the examples in another order.",
            "Its ratio and its error show what the cell's noise is.",
            "The best fixed way is the fastest of plain DDP and of those of auto's candidates whose error at the",
            "end is at most plain DDP's, 0.01 nats or 0.2 points, and what plain again differs by.",
            "A cell in which auto's own error is above that does not count as within the best.",
            "Errors are of one seed, after few steps. All ranks share this machine's cores.",
            "The noise of a ratio's median is the quartiles' distance for plain again, over the root of the blocks.",
            "",
            f"- auto at most {OF_BEST} of the best fixed way and the noise: {count('within_best')} cells;\n  without the noise: {count('is_within_best')}.",
            f"- auto at most {OF_PLAIN} of plain DDP and the noise: {count('within_plain')} cells;\n  without the noise: {count('is_within_plain')}.",
            *of_dense(found),
            f"- auto's error at most plain DDP's and 0.01 nats or 0.2 points: {count('keeps')} cells;\n  "
            f"with what plain again differs by: {count('keeps_within_noise')} cells.",
            f"- What plain again differs by: {largest_noise(cells)} at most.\n  "
            "After so few steps errors show a system that fails, and none that loses little.",
            f"- Cells by build: {of_builds(cells)}.",
            *(in_lines([one + (";" if one != absent[-1] else ".") for one in absent], "- Not run:") if absent else []),
            "",
            *("| " + " | ".join(one) + " |" for one in rows),
            "",
        ]
    )
