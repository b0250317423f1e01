"""How a GradScaler's scale is read where it lies on a CUDA device:
with stand-ins for the device, so that it runs everywhere."""
import copy
import pickle
from unittest import mock

import torch
from torch import nn

from thinwire.loss_scale import LossScale


class _Scale:
    """A scaler's tensor on a device."""

    is_cuda, device, _version = True, torch.device("cuda", 0), 0


class _Scaler:
    def __init__(self, cuda):
        self._scale, self._cuda = _Scale(), cuda

    def get_scale(self):
        self._cuda.read_on.append(self._cuda.current)
        return 512


class _Stream:
    def __init__(self, device):
        self.device, self.awaits = torch.device(device), []

    def wait_event(self, event):
        self.awaits.append(event)


class _Cuda:
    """What of torch.cuda is used, and on which stream the scale was read."""

    def __init__(self):
        self.users = self.current = _Stream("cuda:0")
        self.capturing = False
        self.read_on, self.recorded = [], []

    def Event(self):
        event = mock.Mock()
        event.record = lambda stream: self.recorded.append((event, stream))
        return event

    def Stream(self, device):
        return _Stream(device)

    def current_stream(self, device):
        assert device == self.current.device
        return self.current

    def is_current_stream_capturing(self):
        return self.capturing

    def stream(self, stream):
        cuda = self

        class Current:
            def __enter__(self):
                self.before, cuda.current = cuda.current, stream

            def __exit__(self, *error):
                cuda.current = self.before

        return Current()


def the_scale_waits_for_what_was_before_forward():
    cuda = _Cuda()
    with mock.patch.multiple(torch.cuda, **{name: getattr(cuda, name) for name in (
            "Event", "Stream", "current_stream", "is_current_stream_capturing", "stream")}):
        scaler = _Scaler(cuda)
        scale = LossScale(scaler)
        model = nn.Linear(2, 2)
        scale.watch(model)

        def read_after(change=lambda: None):
            model(torch.zeros(1, 2))
            change()
            assert scale.read() == 512.0 and cuda.current is cuda.users
            return cuda.read_on[-1]

        for step in range(2):
            beside = read_after()
            assert beside is not cuda.users, "read on the stream that backward is on"
            event, stream = cuda.recorded[-1]
            assert (stream is cuda.users and beside.awaits[step:]
                    == [event]), "waits for something else than the beginning of forward"
        # No forward since, another value, another tensor: what was recorded is of before those.
        scale.read()
        assert cuda.read_on[-1] is cuda.users
        assert read_after(lambda: setattr(scaler._scale, "_version", 1)) is cuda.users
        assert read_after(lambda: setattr(scaler, "_scale", _Scale())) is cuda.users
        assert read_after() is beside
        cuda.capturing = True
        assert read_after() is cuda.users
        cuda.capturing = False
        # A scaler of its user's, or one that has scaled nothing yet.
        recorded = len(cuda.recorded)
        scaler._scale = None
        assert read_after(lambda: setattr(scaler, "_scale", _Scale())) is cuda.users
        assert len(cuda.recorded) == recorded
        # Copies of the model watch nothing.
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(torch.zeros(1, 2))
        assert len(cuda.recorded) == recorded


def the_scale_of_the_cpu():
    """Is read as it is."""
    for scaler in (mock.Mock(get_scale=lambda: 8, _scale=torch.full((), 8.0)),
                   mock.Mock(spec=["get_scale"], get_scale=lambda: 8)):
        scale = LossScale(scaler)
        model = nn.Linear(2, 2)
        scale.watch(model)
        model(torch.zeros(1, 2))
        assert scale.read() == 8.0


LOSS_SCALE = [the_scale_waits_for_what_was_before_forward, the_scale_of_the_cpu]
