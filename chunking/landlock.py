"""Linux's Landlock: a process gives up, for good, to open files and connections. Here: all of them.

Behind the limit on open files a second wall, which what is decoded cannot lift. By system calls, since no library for
it is kept; numbers and layout are the kernel's (include/uapi/linux/landlock.h), the same on each machine.
"""

from __future__ import annotations

import ctypes
import struct

_CREATE, _RESTRICT = 444, 446
_VERSION = 1
_FS = {1: 13, 2: 14, 3: 15, 5: 16}
"""From that version on so many rights on files are known: each is a bit, from 0."""
_NET, _SCOPED = 4, 6
"""From that version on also TCP, and abstract sockets and signals outside."""
_TCP, _OUTSIDE = 0b11, 0b11


def version() -> int:
    """Of the kernel's Landlock; 0 where it has none, or may not use it."""
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, 0, _VERSION)))


def forbid_all() -> bool:
    """No file and no connection is opened from now on; those that are open stay. Whether the kernel took it.

    Needs no_new_privs to be set.
    """
    library, known = ctypes.CDLL(None), version()
    if not known:
        return False
    files = (1 << _FS[max(v for v in _FS if v <= known)]) - 1
    wanted = struct.pack("<QQQ", files, _TCP if known >= _NET else 0, _OUTSIDE if known >= _SCOPED else 0)
    size = 24 if known >= _SCOPED else 16 if known >= _NET else 8
    rules = library.syscall(_CREATE, wanted, size, 0)
    return bool(rules >= 0 and library.syscall(_RESTRICT, rules, 0) == 0)
