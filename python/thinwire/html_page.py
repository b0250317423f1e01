"""The page of ``thinwire.HtmlReport``: HTML and pictures in SVG, in one file that needs no script,
no network and no colour."""
import html
import math
import re
import time
from typing import TYPE_CHECKING, Iterable, List, Optional, Sequence, Tuple

from thinwire.extension import readable

if TYPE_CHECKING:
    from thinwire.html_report import HtmlReport, Run

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #000; background: #fff;
  max-width: 62rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #000; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .6rem 0; font-size: .87rem; }
caption { text-align: left; white-space: nowrap; font-weight: bold; padding: .2rem 0; }
th, td { border-bottom: 1px solid #999; padding: .2rem .6rem; text-align: right; vertical-align: top;
  white-space: nowrap; }
thead th { border-bottom: 2px solid #000; } td.text { min-width: 10rem; }
td.text:last-child { min-width: 16rem; }
td.text, th.text { text-align: left; white-space: normal; }
svg { width: 100%; height: auto; display: block; } svg text { font: 12px system-ui, sans-serif; fill: #000; }
svg .halo { paint-order: stroke; stroke: #fff; stroke-width: 4px; }
figure { margin: .8rem 0; } figcaption { font-size: .87rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid #000; padding-left: .8rem; }
@media print { body { max-width: none; margin: 0; } .wide { overflow: visible; } table { font-size: .7rem; }
  td.text, td.text:last-child { min-width: 0; } td.text:first-child { min-width: 9rem; }
  h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""

#: How each part of a bar is filled, and what it is.
_FILLS = {
    "forward": ("#fff", "data, forward, and micro-batches under no_sync"),
    "backward": ("#bbb", "the loss, and gradients one after the other"),
    "compress": ("url(#rising)", "gradients become messages"),
    "wire": ("#000", "messages are sent and taken in"),
    "wait": ("url(#dots)", "nothing to do but wait for the network or for other ranks"),
    "decompress": ("url(#falling)", "messages become means"),
    "waiting": ("url(#dots)",
                "backward is over, and the means are not all there: what communication and slower ranks add"),
    "rest": ("url(#level)", "from the means to HtmlReport.step(): clipping and the optimizer"),
}
_PATTERNS = """<defs>
<pattern id="rising" width="7" height="7" patternUnits="userSpaceOnUse">
<rect width="7" height="7" fill="#fff"/>
<path d="M-1 8 8 -1M-1 1 1 -1M6 8 8 6" stroke="#000" stroke-width="1.6"/></pattern>
<pattern id="falling" width="7" height="7" patternUnits="userSpaceOnUse">
<rect width="7" height="7" fill="#fff"/>
<path d="M-1 -1 8 8" stroke="#000"/></pattern>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" fill="#fff"/>
<circle cx="3" cy="3" r="1.3"/></pattern>
<pattern id="level" width="6" height="5" patternUnits="userSpaceOnUse">
<rect width="6" height="5" fill="#fff"/>
<path d="M0 2.5H6" stroke="#000"/></pattern></defs>"""


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _words(value: object) -> str:
    """Text that may be broken where specs and names of parameters have joints."""
    return re.sub(r"([:,./])(?![ \d])", r"\1<wbr>", _text(value))


def _ms(seconds: Optional[float]) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:,.2f}"


def _number(value: Optional[float]) -> str:
    return "–" if value is None else f"{value:.4g}"


def _paragraph(*sentences: str) -> str:
    return f"<p>{_text(' '.join(sentences))}</p>\n"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]],
           texts: Sequence[int] = (0,)) -> str:
    """Cells are HTML. texts: the columns that are words and not numbers."""
    def line(cells: Sequence[str], tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        kinds = [' class="text"' if i in texts else "" for i in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{scope}{kind}>{cell}</{tag}>"
                                for cell, kind in zip(cells, kinds)) + "</tr>\n"

    return (f'<div class="wide"><table><caption>{_text(caption)}</caption>\n'
            f'<thead>{line([_text(one) for one in head], "th")}</thead>\n<tbody>'
            + "".join(line(row, "td") for row in rows) + "</tbody></table></div>\n")


# --- Pictures -----------------------------------------------------------------------------------------------

def _figure(name: str, description: str, height: float, body: str, caption: str) -> str:
    return (f'<figure><svg viewBox="0 0 900 {height:g}" role="img">\n<title>{_text(name)}</title>'
            f"<desc>{_text(description)}</desc>\n"
            f"{body}</svg><figcaption>{_text(caption)}</figcaption></figure>\n")


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="halo" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(text)}</text>\n'


def _ticks(low: float, high: float) -> List[float]:
    """Round numbers from ``low`` to ``high``, about five."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class _Plot:
    """Lines over two axes."""

    left, right, top, bottom = 70.0, 880.0, 42.0, 270.0

    def __init__(self, xs: Sequence[float], ys: Sequence[float], x_name: str, y_name: str) -> None:
        self.x_range = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
        low, high = min(ys), max(ys)
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        self.y_range = (0.0 if 0 <= low < high / 2 else low - margin), high + margin
        parts = [f'<path d="M{self.left} {self.top}V{self.bottom}H{self.right}" fill="none" '
                 'stroke="#000"/>\n']
        for tick in _ticks(*self.x_range):
            parts.append(f'<path d="M{self.x(tick):.1f} {self.bottom}v5" stroke="#000"/>\n'
                         + _label(self.x(tick), self.bottom + 18, f"{tick:.6g}", "middle"))
        for tick in _ticks(*self.y_range):
            parts.append(f'<path d="M{self.left} {self.y(tick):.1f}H{self.right}" stroke="#ccc"/>\n'
                         + _label(self.left - 6, self.y(tick) + 4, f"{tick:.6g}", "end"))
        self.parts = parts + [_label(self.right, self.bottom + 36, x_name, "end"), _label(4, 14, y_name)]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return max(self.top, self.bottom - (value - low) / (high - low) * (self.bottom - self.top))

    def line(self, points: Sequence[Tuple[float, float]], dash: str = "") -> None:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="#000" stroke-width="1.6" '
                          f'stroke-dasharray="{dash}"/>\n')
        if len(points) == 1:
            self.parts.append(f'<circle cx="{self.x(points[0][0]):.1f}" '
                              f'cy="{self.y(points[0][1]):.1f}" r="3"/>\n')

    def mark(self, numbered: Iterable[Tuple[int, float]]) -> None:
        """Upright lines with numbers, as far as these have room."""
        last = -math.inf
        for number, value in numbered:
            if not self.x_range[0] <= value <= self.x_range[1]:
                continue
            x = self.x(value)
            self.parts.append(f'<path d="M{x:.1f} {self.top - 4}V{self.bottom}" stroke="#000" '
                              'stroke-dasharray="1 4"/>\n')
            if x - last >= 16:
                self.parts.append(_label(x, self.top - 8, str(number), "middle"))
                last = x

    def cross(self, x: float) -> None:
        self.parts.append(f'<path d="M{self.x(x) - 5:.1f} {self.bottom - 10}l10 10m0 -10l-10 10" '
                          'stroke="#000" stroke-width="2"/>\n')

    def figure(self, name: str, description: str, caption: str) -> str:
        return _figure(name, description, 312, "".join(self.parts), caption)


def _bars(name: str, rows: Sequence[Tuple[str, Sequence[Tuple[str, float]]]], caption: str) -> str:
    """A bar of filled parts for each row, all on one scale, and what the fillings are."""
    longest = max(sum(seconds for _, seconds in parts) for _, parts in rows) or 1.0
    body, words, y = [_PATTERNS], [], 6.0
    for label, parts in rows:
        x = 130.0
        body.append(_label(122, y + 17, label, "end"))
        for part, seconds in parts:
            width = seconds / longest * 680
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="24" fill="{_FILLS[part][0]}" '
                        'stroke="#000"/>\n')
            if width > 7.5 * len(part) + 8:
                body.append(_label(x + width / 2, y + 16, part, "middle"))
            x += width
        total = sum(seconds for _, seconds in parts)
        body.append(_label(x + 6, y + 17, f"{_ms(total)} ms"))
        words.append(f"{label}: " + ", ".join(f"{part} {_ms(seconds)} ms" for part, seconds in parts))
        y += 32
    for part in dict.fromkeys(part for _, parts in rows for part, _ in parts):
        y += 22
        body.append(f'<rect x="130" y="{y - 12}" width="30" height="14" fill="{_FILLS[part][0]}" '
                    'stroke="#000"/>\n'
                    + _label(168, y, f"{part}: {_FILLS[part][1]}"))
    return _figure(name, ". ".join(words[:40]), y + 10, "".join(body), caption)


def _spark(values: Sequence[Optional[float]], name: str) -> str:
    """A small line, from 0 up."""
    known = [(i, value) for i, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return "–"
    top = max(value for _, value in known) or 1.0
    points = " ".join(f"{4 + 112 * i / (len(values) - 1):.1f},{20 - 17 * value / top:.1f}"
                      for i, value in known)
    return ('<svg viewBox="0 0 120 22" style="width:120px;display:inline-block" '
            f'role="img"><title>{_text(name)}</title><path d="M4 20.5H116" stroke="#999"/><polyline '
            f'points="{points}" fill="none" stroke="#000" stroke-width="1.4"/></svg>')


# --- Sections -----------------------------------------------------------------------------------------------

def _summary(record: "HtmlReport") -> str:
    report, runs = record.report, record.runs
    total = report["total"]
    rows = [("system at the last step", _system(runs[-1]) if runs else report["system"]),
            ("this page is of rank", f"{report['rank']} of {report['world_size']}"),
            ("steps recorded", f"{record.steps:,}, {record.skipped_steps:,} of them not finite and left out"),
            ("bytes sent by this rank since it registered", f"{total['wire_bytes_sent']:,}"),
            ("gradient bytes they stand for", f"{total['raw_bytes']:,}")]
    if runs and runs[-1].steps:
        rows.insert(3, ("a step since the last choice, mean", f"{_ms(runs[-1].seconds / runs[-1].steps)} ms"))
    losses = [entry["loss"] for entry in record.history if entry["loss"] is not None]
    if losses:
        rows.append(("loss, the last that was kept", _number(losses[-1])))
    rows.append(("written", time.strftime("%Y-%m-%d %H:%M:%S %z")))
    return _table("In short", ["what", "value"],
                  [(_text(name), _words(value)) for name, value in rows], (0, 1))


def _loss(record: "HtmlReport") -> str:
    points = [(entry["wall"], entry["loss"]) for entry in record.history if entry["loss"] is not None
              and math.isfinite(entry["loss"])]
    if not points:
        return ""
    plot = _Plot([0.0] + [x for x, _ in points], [y for _, y in points], "seconds since the recording began",
                 "loss of this rank")
    plot.line(points)
    plot.mark((record.forgotten_runs + i + 1, run.wall) for i, run in enumerate(record.runs))
    shown = points[:: max(1, len(points) // 10)]
    shown += points[-1:] if shown[-1] != points[-1] else []
    figure = plot.figure("Loss against time", f"From {_number(points[0][1])} to {_number(points[-1][1])} in "
                         f"{points[-1][0]:.3g} s.",
                         "Dotted uprights are the numbered choices of the table below. All time counts, "
                         "evaluations included.")
    return "<h2>Loss against time</h2>\n" + figure + _table("Losses in numbers", ["seconds", "loss"],
                                                            [(f"{x:.3f}", _number(y)) for x, y in shown], ())


def _times(record: "HtmlReport") -> str:
    entries = [entry for entry in record.history if "step" in entry]
    if not entries:
        return ""
    seconds = sorted(1e3 * entry["seconds"] for entry in entries)
    limit = 4 * seconds[len(seconds) // 2]
    plot = _Plot([entry["step"] for entry in entries], [0.0, min(limit, seconds[-1])], "step", "ms")
    plot.line([(entry["step"], 1e3 * entry["seconds"]) for entry in entries])
    waits = [(entry["step"], 1e3 * entry["waiting"]) for entry in entries if entry["waiting"] is not None]
    if waits:
        plot.line(waits, "5 3")
    plot.mark((record.forgotten_runs + i + 1, run.first) for i, run in enumerate(record.runs))
    for entry in entries:
        if entry["skipped"]:
            plot.cross(entry["step"])
    caption = ("Whole line: a step. Dashed line: its part in which backward was over and the means were not "
               "all there. Dotted uprights: the numbered choices. Crosses: steps that were not finite.")
    if seconds[-1] > limit:
        caption += (" Steps of more than four times the median are cut at the upper edge; "
                    f"the longest took {seconds[-1]:,.1f} ms.")
    if record._stride > 1:
        caption += f" One step in {record._stride} is drawn."
    skipped = ""
    if record.skipped:
        earlier = "earlier ones, " if record.skipped_steps > len(record.skipped) else ""
        skipped = _paragraph(f"Steps that were not finite: {earlier}{', '.join(map(str, record.skipped))}.")
    return "<h2>Time of each step</h2>\n" + plot.figure("Time of each step",
                                                        f"The median is {seconds[len(seconds) // 2]:.4g} ms.",
                                                        caption) + skipped


def _reason(record: "HtmlReport", place: int) -> str:
    """Why a run began, as far as that is known."""
    run = record.runs[place]
    is_last = place + 1 == len(record.runs) or record.runs[place + 1].spec != run.spec
    words = [line for spec, text in record.explanations if spec == run.spec for line in text.splitlines()]
    said = []
    for line in words:
        match = re.match(r"step (\d+): ", line)
        if (match and run.first - 1 <= int(match[1])
            and (int(match[1]) < run.last or (is_last and int(match[1]) <= run.last))):
            said.append(line)
    if run.is_set:
        said.insert(0, "The script called handle.set.")
    elif place > 0 and run.first <= record.runs[place - 1].last:
        said.insert(0, "A state of an earlier step was loaded.")
    elif place == 0 and record.forgotten_runs == 0:
        said.insert(0, "As registered." if run.first == 0 else "As it was when the recording began.")
    return "\n".join(said) or ("On trial." if words else "The system's own choice.")


def _system(run: "Run") -> str:
    """What the run's steps used, without the system for sparse rows, which seldom changes."""
    short = readable(run.spec)
    spec = short.partition(",dense=")[2] or short
    chosen = ", ".join(run.schemes)
    if spec.startswith("auto") and chosen:
        return f"{chosen}, by auto"
    return f"{spec}, which took {chosen}" if chosen else spec


def _choices(record: "HtmlReport") -> str:
    rows = []
    for place, run in enumerate(record.runs):
        rows.append((str(record.forgotten_runs + place + 1), f"{run.first}–{run.last}", _words(_system(run)),
                     _ms(run.seconds / run.steps), f"{run.bytes_sent // run.steps:,}", str(run.skipped),
                     _text(_reason(record, place)).replace("\n", "<br>")))
    text = "<h2>Choices and their reasons</h2>\n"
    if record.forgotten_runs:
        text += _paragraph(f"The first {record.forgotten_runs} are left out.")
    text += _table("Steps count from 0. Times and bytes are means of the steps of a choice",
                   ["choice", "steps", "system", "ms a step", "bytes sent a step", "not finite", "why"], rows,
                   (2, 6))
    for spec, words in record.explanations:
        text += f"<p>All that {_words(readable(spec))} said:</p>\n<pre>{_text(words)}</pre>\n"
    return text


def _parts(record: "HtmlReport") -> str:
    timed = [(str(record.forgotten_runs + i + 1), run) for i, run in enumerate(record.runs) if run.timed]
    text = "<h2>Where the time of a step goes</h2>\n"
    if not timed:
        return text + _paragraph("Not known: no step came to its end within backward.")
    names = list(timed[0][1].parts)
    rows = [(f"choice {number}", [(name, run.parts[name] / run.timed) for name in names])
            for number, run in timed]
    text += _bars("Where the time of a step goes", rows[-8:],
                  ("The last 8 choices. " if len(rows) > 8 else "")
                  + "Means over the steps of each choice. "
                  "The parts of a bar follow each other and add up to the step.")
    cells = [(number, str(run.timed), *(_ms(run.parts[name] / run.timed) for name in names))
             for number, run in timed]
    text += _table("Parts in numbers: ms a step", ["choice", "steps", *names], cells, ())
    if record.is_on_device:
        text += _paragraph("Gradients are on a CUDA device, which works through a queue: "
                           "forward and backward end when all of theirs is queued.")
    if not record.forward_was_seen:
        text += _paragraph("The end of forward was not seen, as under torch.compile: "
                           "backward of the first bucket counts as forward.")
    return text


def _names(parameters: Sequence[str]) -> str:
    if len(parameters) == 1:
        return _words(parameters[0])
    plural = f"{len(parameters)} parameters: {parameters[0]} to {parameters[-1]}"
    return f"<details><summary>{_words(plural)}</summary>{'<br>'.join(map(_words, parameters))}</details>"


def _buckets(record: "HtmlReport") -> str:
    run = next((run for run in reversed(record.runs) if run.buckets), None)
    if run is None:
        return ""
    columns = ("backward", "compress", "wire", "wait", "decompress")
    means = [(index, sums, [(name, getattr(sums, name) / sums.steps) for name in columns])
             for index, sums in sorted(run.buckets.items())]
    text = "<h2>The same by bucket</h2>\n" + _paragraph(
        "DDP gathers parameters in buckets, and each is sent while backward goes on with the next.",
        "Backward is the time until the bucket was ready, since the one before it was, "
        "or since forward ended.",
        "The other parts happen in Thinwire's threads, beside backward and beside other buckets: "
        "they do not add up to the step.")
    shown = sorted(sorted(means, key=lambda one: -sum(seconds for _, seconds in one[2]))[:24])
    text += _bars("Time by bucket", [(f"bucket {index}", parts) for index, _, parts in shown],
                  f"Means over the steps from {run.layout_since} to {run.last}."
                  + (" The 24 longest buckets." if len(means) > 24 else ""))
    rows = [(str(index), str(sums.steps), *(_ms(seconds) for _, seconds in parts),
             f"{sums.bytes_sent // sums.steps:,}",
             _names(run.layout[index])) for index, sums, parts in means]
    return text + _table("Buckets in numbers: ms a step",
                         ["bucket", "steps", *columns, "bytes sent", "parameters"], rows, (8,))


def _last_step(record: "HtmlReport") -> str:
    report = record.report
    rows = [(str(bucket["bucket"]), str(bucket["step"]), f"{bucket['elements']:,}",
             f"{bucket['raw_bytes']:,}", f"{bucket['wire_bytes_sent']:,}",
             _number(bucket["residual_norm"]), _words(bucket["scheme"] or "–"),
             _words(bucket["compressed_on"]), "yes" if bucket["finite"] else "no")
            for bucket in report["buckets"]]
    if not rows:
        return ""
    last = report["last_step"]
    rows.append(("all", "", f"{last['elements']:,}", f"{last['raw_bytes']:,}", f"{last['wire_bytes_sent']:,}",
                 "", "", "", "yes" if last["finite"] else "no"))
    head = ["bucket", "step", "elements", "gradient bytes", "bytes sent", "residual norm", "system",
            "compressed on", "finite"]
    return "<h2>The last step by bucket</h2>\n" + _table("As handle.report() has it", head, rows, (6, 7, 8))


def _layers(record: "HtmlReport") -> str:
    text = "<h2>Error and residual by layer</h2>\n"
    if not record.samples:
        return text + _paragraph("Not taken.")
    samples, last = record.samples, record.samples[-1]
    text += _paragraph(
        "A residual is what this rank's messages have not delivered yet: the error that its last step left, "
        "which the next step adds to the gradient.",
        "The gradient is what the parameter held when the sample was taken: the mean over ranks, "
        "after clipping.",
        "Both are without the scale of a GradScaler.",
        "A ratio of 3 says that as much is held back as three such gradients.",
        f"Norms are l2, after step {last['step']}. {len(samples)} samples were kept, "
        f"the first after step {samples[0]['step']}.")
    rows = []
    for name, (elements, residual, gradient) in last["layers"].items():
        ratio = residual / gradient if residual is not None and gradient else None
        history = [sample["layers"].get(name, (0, None, None))[1] for sample in samples]
        rows.append((_words(name), f"{elements:,}", _number(residual), _number(gradient), _number(ratio),
                     _spark(history, f"residual of {name} over the samples")))
    if all(residual is None for _, residual, _ in last["layers"].values()):
        text += _paragraph("The system keeps no residual.")
    return text + _table("By parameter", ["parameter", "elements", "residual", "gradient",
                                          "residual / gradient", "residual over the samples, from 0"], rows)


def _errors(record: "HtmlReport") -> str:
    text = "<h2>The error of the mean</h2>\n"
    if not record.errors:
        return text + _paragraph(
            "Not measured: to know it, a step has to send all gradients as they are.",
            "The stage guard does so in some steps, by itself in auto or in front of any system.")
    text += _paragraph(
        "The distance of the mean that a step gave from the exact mean, as a part of the exact mean's norm.",
        "The stage guard has measured it in some steps.")
    rows = [(_names(parameters), str(one.times), str(one.step), _number(one.last), _number(one.largest))
            for parameters, one in record.errors.items()]
    return text + _table("Where the guard has measured it",
                         ["parameters of the bucket", "times", "last in step", "then", "largest"], rows, (0,))


def page(record: "HtmlReport") -> str:
    """The whole page of what an HtmlReport has recorded."""
    sections = ((_summary, _loss, _times, _choices, _parts, _buckets, _last_step, _errors, _layers)
                if record.runs else (_summary, _loss))
    body = "".join(section(record) for section in sections)
    if not record.runs:
        body += _paragraph("No step has synchronized gradients since the recording began.")
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width">\n'
            f"<title>Thinwire: report of a training</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
            "<h1>Report of a training with Thinwire</h1>\n"
            f"{body}</body>\n</html>\n")
