"""Scenarios of thinwire.HtmlReport: the page that rank 0 writes."""
import copy
import gc
import html.parser
import os
import pickle
import re
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

import thinwire
from common import RANK, Mixed, Net, batch, register, require_error, train, wrap
from thinwire.launch import environments, free_port

VOID = {"meta", "br", "wbr"}  # of HTML; SVG's closes itself


class Page(html.parser.HTMLParser):
    """Tables by caption, text and pictures of a page, which has to be well-formed."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tables, self.headings, self.text, self.figures, self.tags = [], {}, [], "", [], set()
        self._caption = self._cell = ""
        with open(path, encoding="utf-8") as file:
            self.source = file.read()
        self.feed(self.source)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        assert self.source.startswith('<!DOCTYPE html>\n<html lang="en">')
        foreign = [word for word in ("http:", "https:", "src=", "href=", "<script", "@import", "NaN", "nan<")
                   if word in self.source]
        assert not foreign, foreign

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._cell = "" if tag in ("td", "th", "caption", "h2", "title") else self._cell
        if tag == "tr":
            self.tables[self._caption].append([])

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} ends at {self.getpos()}"
        if tag == "caption":
            self._caption = (self._cell if self._cell not in self.tables
                             else f"{self._cell} {len(self.tables)}")
            self.tables[self._caption] = []
        elif tag in ("td", "th"):
            self.tables[self._caption][-1].append(self._cell)
        elif tag == "h2":
            self.headings.append(self._cell)
        elif tag == "title" and "svg" in self.open:
            self.figures.append(self._cell)

    def handle_data(self, data):
        self._cell += data
        self.text += data

    def rows(self, caption):
        (found,) = [rows for name, rows in self.tables.items() if name.startswith(caption)]
        return found[1:]


def recorded(spec, steps, act=lambda step, handle: None, make=Net, folder=None, **options):
    """Trains with AdamW and gives the page's path, the handle and its model;
    ``act`` is called before each step."""
    model = wrap(make)
    handle = register(model, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    path = os.path.join(folder, f"report.{RANK}.html")
    with thinwire.HtmlReport(handle, path, **options) as report:
        for step in range(steps):
            scale = act(step, handle)
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean() * (1.0 if scale is None else scale)
            loss.backward()
            if handle.report()["last_step"]["finite"]:
                optimizer.step()
            report.step(loss=loss)
    return path, handle, model


def require_last_step(page, report):
    """The page's table of the last step is what the handle says."""
    rows = page.rows("As handle.report() has it")
    assert len(rows) == len(report["buckets"]) + 1
    for row, bucket in zip(rows, report["buckets"]):
        numbers = [bucket[key] for key in ("bucket", "step", "elements", "raw_bytes", "wire_bytes_sent")]
        assert [int(cell.replace(",", "")) for cell in row[:5]] == numbers, (row, bucket)
        assert row[6] == (bucket["scheme"] or "–") and row[8] == ("yes" if bucket["finite"] else "no"), row
        if bucket["residual_norm"] is None:
            assert row[5] == "–", row
        else:
            assert abs(float(row[5]) - bucket["residual_norm"]) <= 1e-3 * bucket["residual_norm"], row
    assert int(rows[-1][4].replace(",", "")) == report["last_step"]["wire_bytes_sent"]
    summary = dict(page.rows("In short"))
    assert int(summary["bytes sent by this rank since it "
                       "registered"].replace(",", "")) == report["total"]["wire_bytes_sent"]


def a_page_of_a_lossy_system():
    """With a step that is not finite, another system in the middle, and losses."""
    def act(step, handle):
        if step == 6:
            handle.set("top_k:ratio=0.1+zen")
        return float("nan") if step == 4 and RANK == 1 else None

    with tempfile.TemporaryDirectory() as folder:
        path, handle, model = recorded("casq:bits=4", 9, act, folder=folder)
        assert os.listdir(folder) == (["report.0.html"] if RANK == 0 else [])
        if RANK != 0:
            return
        page, report = Page(path), handle.report()
        require_last_step(page, report)
        choices = page.rows("Steps count from 0")
        assert [row[1] for row in choices] == ["0–5", "6–8"], choices
        assert (choices[0][2].startswith("casq:bits=4")
                and choices[1][2].startswith("top_k:ratio=0.1")), choices
        assert [row[5] for row in choices] == ["1", "0"] and "Steps that were not finite: 4." in page.text
        assert choices[0][6] == "As registered." and choices[1][6] == "The script called handle.set.", choices
        sent = sum(6 * int(row[4].replace(",", "")) if row is choices[0] else 3 * int(row[4].replace(",", ""))
                   for row in choices)
        assert abs(sent - report["total"]["wire_bytes_sent"]) <= 9, (sent, report["total"])
        for ms, (_, steps, *parts) in zip([float(row[3]) for row in choices], page.rows("Parts in numbers")):
            assert abs(sum(map(float, parts)) - ms) <= 0.03 and min(map(float, parts)) >= 0, (ms, parts)
        # Residuals are those that the handle would save.
        state = handle.state_dict()["values"]
        gradients = dict(model.module.named_parameters())
        layers = page.rows("By parameter")
        assert [row[0] for row in layers] == list(gradients)
        for name, elements, residual, gradient, *_ in layers:
            assert int(elements.replace(",", "")) == gradients[name].numel()
            assert abs(float(residual)
                       - state["residual/" + name].norm().item()) <= 1e-3 * float(residual) + 1e-12, name
            assert abs(float(gradient)
                       - gradients[name].grad.norm().item()) <= 1e-3 * float(gradient) + 1e-12, name
        assert (len(page.rows("Buckets in numbers")) == len(report["buckets"])
                and float(page.rows("Losses in numbers")[0][1]) > 0)
        assert {"Loss against time", "Time by bucket", "Time of each step"} <= set(page.figures)
        assert "The error of the mean" in page.headings and "Not measured: to know it" in page.text


def errors_are_those_that_the_guard_measured():
    measured = {}

    def act(step, handle):
        for bucket in handle.report()["buckets"] if step else []:
            if bucket["relative_error"] is not None:
                found = measured.setdefault(tuple(bucket["parameters"]), [])
                found.append((bucket["step"], bucket["relative_error"]))

    with tempfile.TemporaryDirectory() as folder:
        path, handle, _ = recorded("guard:every=8:noise=1000+casq:bits=4", 24, act, folder=folder)
        act(24, handle)
        if RANK != 0:
            return
        rows = Page(path).rows("Where the guard has measured it")
        assert len(rows) == len(measured) and measured, (rows, measured)
        for row, found in zip(rows, measured.values()):
            found = sorted(set(found))
            assert [int(row[1]), int(row[2])] == [len(found), found[-1][0]], (row, found)
            for cell, error in ((row[3], found[-1][1]), (row[4], max(error for _, error in found))):
                assert abs(float(cell) - error) <= 1e-3 * error and error > 0, (row, found)


def a_page_of_choices():
    """auto's words are on it as they are, and its reasons stay when another system is set."""
    words = []

    def act(step, handle):
        if step == 30:  # the trial of three and of what has won beside dense is over by then
            words.append(handle._decided() + "\nstep 29: what it said last")
            handle._decided = lambda: words[0]
            handle.set("dense")
            del handle._decided

    with tempfile.TemporaryDirectory() as folder:
        path, handle, _ = recorded("auto:settle=1:rounds=1:steps=2:interval=64", 32, act, folder=folder,
                                   layers_every=0)
        if RANK != 0:
            return
        page = Page(path)
        require_last_step(page, handle.report())
        choices = page.rows("Steps count from 0")
        assert [re.split("[:,]", row[2])[0] for row in choices[:3]] == ["dense", "half", "power_sgd"], choices
        assert choices[-1][1] == "30–31" and choices[-1][6] == "The script called handle.set.", choices
        *lines, last = words[0].splitlines()
        line = next(line for line in lines if ": guard: " not in line)
        assert words[0] in page.text and last in choices[-2][6], (words, choices)
        assert any(line in row[6] for row in choices[:-1]), (line, choices)
        assert "Not taken." in page.text


class Strange(nn.Module):
    """Parameters whose names have a meaning in HTML."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"<b>&\"'": nn.Linear(20, 48), "</td>": nn.Linear(48, 5)})

    def forward(self, x):
        first, second = self.layers.values()
        return second(first(x).tanh())


def the_lines_of_the_docs():
    """As docs/pytorch.md prints them."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/pytorch.md"),
              encoding="utf-8") as file:
        section = file.read().split("## A page about a whole training", 1)[1]
    once, after_step, at_end = section.split("```python\n", 1)[1].split("```", 1)[0].splitlines()
    model = wrap(Net)
    names = {"thinwire": thinwire, "handle": register(model, "power_sgd:rank=2")}
    with tempfile.TemporaryDirectory() as folder:
        assert '"report.html"' in once
        path = os.path.join(folder, "report.html")
        exec(once.replace("report.html", path), names)
        for step in range(3):
            names["loss"] = model(batch(step)).square().mean()
            names["loss"].backward()
            exec(after_step, names)
        exec(at_end, names)
        if RANK == 0:
            require_last_step(Page(path), names["handle"].report())


def names_are_text():
    with tempfile.TemporaryDirectory() as folder:
        path, _, model = recorded("power_sgd:rank=2", 3, make=Strange, folder=folder)
        if RANK == 0:
            page = Page(path)
            assert "b" not in page.tags and "&lt;b&gt;&amp;" in page.source
            assert ([row[0] for row in page.rows("By parameter")]
                    == [name for name, _ in model.module.named_parameters()])


class Scaler:
    """What is read from a GradScaler."""

    def get_scale(self):
        return 256.0


def gradients_are_those_of_the_last_sample_with_any():
    """A page that is closed after zero_grad, as it is at a script's end."""
    for to_none in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            model = wrap(Net)
            handle = register(model, "casq:bits=4")
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            path = os.path.join(folder, f"report.{RANK}.html")
            with thinwire.HtmlReport(handle, path) as report:
                for step in range(7):
                    loss = model(batch(step)).square().mean()
                    loss.backward()
                    optimizer.step()
                    report.step(loss=loss)
                    optimizer.zero_grad(set_to_none=to_none)
            layers = report.samples[-1]["layers"] if RANK == 0 else {}  # the page is rank 0's
            assert all(gradient for _, _, gradient in layers.values()), (to_none, report.samples[-1])
            handle.close()


def scales_and_states():
    """Residuals are without the loss scale, and a run that goes back to a state says so."""
    with tempfile.TemporaryDirectory() as folder:
        model = wrap(Net)
        handle = register(model, "casq", grad_scaler=Scaler())
        report = thinwire.HtmlReport(handle, os.path.join(folder, "report.html"))
        state = None
        for step in range(7):
            if step == 3:
                state = handle.state_dict()
            elif step == 5:
                handle.load_state_dict(state)
            model.zero_grad()
            (256.0 * model(batch(step)).square().mean()).backward()
            report.step()
        report.close()
        if RANK == 0:
            page = Page(os.path.join(folder, "report.html"))
            choices = page.rows("Steps count from 0")
            assert ([row[1] for row in choices] == ["0–4", "3–4"]
                    and choices[1][6] == "A state of an earlier step was loaded."), choices
            values = handle.state_dict()["values"]
            for name, _, residual, *_ in page.rows("By parameter"):
                expected = values["residual/" + name].norm().item() / 256
                assert abs(float(residual) - expected) <= 1e-3 * expected, name


def what_a_loop_may_do():
    """Accumulation, sparse rows, several synchronizations or none in a step, several handles and recorders,
    pages of a run that goes on."""
    with tempfile.TemporaryDirectory() as folder:
        models = [wrap(Mixed), wrap(Net)]
        handles = [register(model, spec) for model, spec in zip(models, ("casq", "dense"))]
        paths = [os.path.join(folder, name) for name in ("one.html", "other.html", "again.html")]
        reports = [thinwire.HtmlReport(handle, path) for handle, path in zip((*handles, handles[0]), paths)]
        reports[0].step()  # nothing was synchronized yet
        reports[0].write()
        for step in range(4):
            with models[0].no_sync():
                models[0](batch(step)).square().mean().backward()
            for model in models:
                model(batch(step)).square().mean().backward()
            models[1](batch(step)).square().mean().backward()
            for report in reports:
                report.step(loss=1.0 / (step + 1) if report is not reports[1] else None)
                report.resume()
            reports[1].write()
        assert (pickle.dumps(models[0]) and copy.deepcopy(models[0])(batch(0)).shape
                == (6, 5)), "the recorder's hook on forward stays behind"
        for handle in handles:
            handle.close()
        reports[0].step(loss=2.0)
        if RANK == 0:
            pages = [Page(path) for path in paths]
            assert ([row[1] for row in pages[0].rows("Steps count from 0")]
                    == [row[1] for row in pages[2].rows("Steps count from 0")] == ["0–3"])
            assert [row[1] for row in pages[1].rows("Steps count from 0")] == ["1–7"], (
                "two steps for one of the optimizer"
            )
            assert "Loss against time" in pages[0].headings and "Loss against time" not in pages[1].headings
            require_last_step(pages[0], handles[0].report())
            assert dict(pages[0].rows("In short"))["steps recorded"].startswith("5,")
        dist.barrier()


def memory_is_bounded():
    """Of a long run every other step is forgotten, again and again; sums are not."""
    with tempfile.TemporaryDirectory() as folder:
        model = wrap(Net)
        handle = register(model, "casq")
        report = thinwire.HtmlReport(handle, os.path.join(folder, "report.html"), layers_every=1)
        if RANK == 0:
            for step in range(9000):
                report.step(loss=1.0)
            assert (len(report.history) <= 2000
                    and [entry["call"] % 8 for entry in report.history] == [1] * len(report.history))
            assert report.steps == 9000 and len(report.samples) <= 32
        report.close()
        again = thinwire.HtmlReport(handle, os.path.join(folder, "report.html"))
        del handle
        model = None
        gc.collect()
        if RANK == 0:
            require_error(RuntimeError, ["the model is gone"], lambda: again.step())
        again.close()


UNFINISHED = """
import sys
import torch
import torch.distributed as dist
import thinwire

def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(9, 2))
    report = thinwire.HtmlReport(thinwire.register(model, "casq"), sys.argv[1])
    for step in range(3):
        loss = model(torch.randn(4, 9)).square().mean()
        loss.backward()
        report.step(loss=loss)
    if sys.argv[2] == "fails":
        raise ValueError("a bug in the script")

main()
"""


def scripts_that_close_nothing():
    """What was recorded is on the page, whether the script fails or comes to its end."""
    for ends in ("fails", "returns") if RANK == 0 else ():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.html")
            done = subprocess.run([sys.executable, "-c", UNFINISHED, path, ends], text=True,
                                  capture_output=True, timeout=120,
                                  env={**os.environ, **environments(1, free_port())[0]})
            assert (done.returncode == (ends == "fails")
                    and ("a bug in the script" in done.stderr) == (ends == "fails")), done.stderr
            page = Page(path)
            assert [row[1] for row in page.rows("Steps count from 0")] == ["0–2"]
            assert (dict(page.rows("In short"))["steps recorded"].startswith("3,")
                    and len(page.rows("By parameter")) == 2)
    dist.barrier()


def pages_that_cannot_be():
    require_error(TypeError, ["handle that thinwire.register returned", "NoneType"],
                  lambda: thinwire.HtmlReport(None, "report.html"))
    model = wrap(Net)
    handle = register(model, "dense")
    require_error(ValueError, ["layers_every=-1"],
                  lambda: thinwire.HtmlReport(handle, "report.html", layers_every=-1))
    model_of, sharded = handle._model, nn.Linear(2, 2)
    handle._model = lambda: sharded
    require_error(TypeError, ["a Linear whose parameters are sharded", "handle.report()"],
                  lambda: thinwire.HtmlReport(handle, "report.html"))
    handle._model = model_of
    if RANK == 0:
        require_error(FileNotFoundError, ["/no/such", "make it first"],
                      lambda: thinwire.HtmlReport(handle, "/no/such/report.html"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.html")
            with open(path, "w", encoding="utf-8") as file:
                file.write("before")
            report = thinwire.HtmlReport(handle, path)
            with open(path, encoding="utf-8") as file:
                assert file.read() == "before", "nothing is written before something happened"
            for kind, loss, words in ((TypeError, "0.5 nats", "loss='0.5 nats': a number is needed"),
                                      (TypeError, [0.5], "loss=[0.5]: a number is needed, or a tensor"),
                                      (ValueError, torch.randn(3), "loss is a tensor of shape (3,): a")):
                require_error(kind, [words], lambda: report.step(loss=loss))
            os.remove(path)
            os.mkdir(path)
            require_error(OSError, ["report.html"], report.write)
            assert os.listdir(folder) == ["report.html"], ("nothing is left of a page that could "
                                                           "not be written")
            os.rmdir(path)
            report.close()
            assert os.listdir(folder) == ["report.html"]
    train(model, 1)


HTML_REPORT = [a_page_of_a_lossy_system, errors_are_those_that_the_guard_measured, a_page_of_choices,
               the_lines_of_the_docs, names_are_text,
               gradients_are_those_of_the_last_sample_with_any, scales_and_states, what_a_loop_may_do,
               memory_is_bounded, scripts_that_close_nothing, pages_that_cannot_be]
