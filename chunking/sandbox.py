"""A fork server: each request runs in a child that can read one file, write another, and nothing else.

A new Python that imports PyAV takes 0.15 s, a fork of one that has it a few ms. The child
cannot open anything: its limit on open files is already reached, so no file, socket or playlist entry is in reach;
and where the kernel has Landlock, that forbids it as well.
Linux only: PR_SET_PDEATHSIG and sequenced Unix sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import json
import os
import resource
import selectors
import signal
import socket
from collections.abc import Callable
from typing import Any

from chunking import landlock
from chunking.errors import Code, SpotscribeError

Work = Callable[[int, int, dict[str, Any]], dict[str, Any]]
"""Takes the input's and the output's file descriptor and the options; returns a report."""

_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_MEMORY = 3 << 29
"""Address space (1.5 GiB) that a child may take on top of the server's own: enough for 8 channels at 192 kHz."""
_INPUT, _OUTPUT, _STATUS = 3, 4, 5


def serve(control_fd: int, work: Work) -> None:
    """Answer requests until the control socket closes; then end all children."""
    _Server(socket.socket(fileno=control_fd), work).run()


class _Server:
    def __init__(self, control: socket.socket, work: Work) -> None:
        self._control = control
        self._work = work
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._null = os.open(os.devnull, os.O_RDWR)
        self._libc = ctypes.CDLL(None)
        self._pid = os.getpid()

    def run(self) -> None:
        wakeup, alarm = socket.socketpair()
        for end in (wakeup, alarm):
            end.setblocking(False)
        signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(wakeup, selectors.EVENT_READ)
        gc.collect()
        gc.freeze()  # children share these pages as long as nobody collects them
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is wakeup:
                    with contextlib.suppress(BlockingIOError):
                        wakeup.recv(4096)
                elif key.fileobj is self._control:
                    if not self._accept():
                        self._end_all()
                        return
                else:  # the parent has closed its end, having its report or its patience lost
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            self._reap()

    def _accept(self) -> bool:
        """Start a child for one request; False when the parent has gone."""
        data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 3)
        if not data:
            return False
        status = socket.socket(fileno=fds[2])
        pid = os.fork()
        if pid == 0:
            self._child(json.loads(data), fds[0], fds[1], status.fileno())
        os.close(fds[0])
        os.close(fds[1])
        self._children[pid] = status
        self._selector.register(status, selectors.EVENT_READ, pid)
        return True

    def _reap(self) -> None:
        for pid, status in list(self._children.items()):
            done, how = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            if how:
                with contextlib.suppress(OSError):
                    status.send(json.dumps({"died": os.waitstatus_to_exitcode(how)}).encode())
            with contextlib.suppress(KeyError):
                self._selector.unregister(status)
            status.close()
            del self._children[pid]

    def _end_all(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _child(self, request: dict[str, Any], source: int, output: int, status: int) -> None:
        """Lock up, work, report, and leave without returning."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            self._libc.prctl(_PDEATHSIG, signal.SIGKILL)
            self._libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
            if os.getppid() != self._pid:
                os._exit(1)
            taken = _address_space()
            landlock.forbid_all()  # where the kernel has none, the limits have to do
            _keep_only(self._null, source, output, status)
            _limit(taken, request["cpu_s"], request["output_bytes"])
            answer = json.dumps(_answer(self._work, request["options"])).encode()
            os.write(_STATUS, answer)
            code = 0
        finally:
            os._exit(code)


def _answer(work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """The report, or the error in words of our own: a library's message may quote the file."""
    try:
        return {"report": work(_INPUT, _OUTPUT, options)}
    except SpotscribeError as error:
        return {"error": error.code, "message": str(error)}
    except MemoryError:
        return {"error": Code.DECODER_CRASHED, "message": "the decoder needed too much memory"}
    except OSError as error:
        if error.errno != errno.EMFILE:
            return {"errno": error.errno}
        return {"error": Code.DECODER_CRASHED, "message": "the decoder tried to open another file"}
    except Exception as error:
        return {"error": Code.DECODER_CRASHED, "message": f"the decoder failed ({type(error).__name__})"}


def _keep_only(null: int, source: int, output: int, status: int) -> None:
    """Files 0 to 2 lead nowhere, 3 to 5 are the input, the output and the status socket; there are no others."""
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (null, null, null, source, output, status)]
    for number, fd in enumerate(aside):
        os.dup2(fd, number)
    os.closerange(_STATUS + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _address_space() -> int:
    """Bytes that this process takes."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _limit(taken: int, cpu_s: int, output_bytes: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, taken + _MEMORY),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, output_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, _STATUS + 1),
    ):
        hard = resource.getrlimit(what)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (limit, limit))
