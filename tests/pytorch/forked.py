"""Ranks as processes that are forked from one which has loaded torch: each would take seconds to load it."""
import os
import runpy
import signal
import sys
import tempfile
import time

import torch.nn.parallel  # noqa: F401

import thinwire

assert thinwire.register  # which loads all that it needs


class Rank:
    """A process of its own that runs a script, or a module by its name, with these arguments; what it writes
    goes to a file."""

    def __init__(self, script, arguments, environment):
        self._output = tempfile.TemporaryFile("w+")
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        for descriptor in (1, 2):
            os.dup2(self._output.fileno(), descriptor)
        os.environ.update(environment)
        sys.argv = [script, *arguments]
        if script.endswith(".py"):
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
        else:
            sys.modules.pop(script, None)  # as for a process that begins
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        sys.exit(0)  # as any process, so that what it has opened is closed

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, end):
        """Its status, negative after a signal; None where it has not ended by then and was killed."""
        while True:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return None
            time.sleep(0.01)

    def output(self):
        self._output.seek(0)
        return self._output.read()
