"""Network namespaces without a name: they exist as long as a process is in them or holds them open.

Linux and root only. The two calls of the C library are not in Python before 3.12.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipette_milp.errors import InputError, PipetteError

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of linux/sched.h"""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of linux/prctl.h"""
COMMAND_TIMEOUT_S = 60.0


class EmulationError(PipetteError):
    """An emulated cluster could not be built, or one of its processes failed."""


def why_impossible() -> str | None:
    """Why clusters cannot be emulated here; None if they can."""
    if not sys.platform.startswith("linux"):
        return "emulated clusters need Linux (network namespaces)"
    if os.geteuid() != 0:
        return "emulated clusters need root (network namespaces)"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"emulated clusters need the program {program} (package iproute2)"
    check = (
        "from pipette_milp.measure.emulation.namespaces import new_namespace, run_batch\n"
        "new_namespace()\n"
        "run_batch('ip', ['link add port0 type veth peer name eth0', 'link set eth0 gso_max_size 4344 up'])\n"
        "run_batch('tc', ['qdisc add dev eth0 root handle 1: htb default 2',\n"
        "    'class add dev eth0 parent 1: classid 1:1 htb rate 1mbit burst 5000',\n"
        "    'qdisc add dev eth0 parent 1:1 handle 2: pfifo limit 10',\n"
        "    'filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.0.0.1/32 flowid 1:1'])\n"
        "open('/proc/sys/net/ipv4/tcp_congestion_control', 'w').write('reno')\n"
    )
    tried = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        lines = tried.stderr.strip().splitlines()
        return f"network namespaces cannot be built here: {lines[-1] if lines else 'no message'}"
    return None


def require() -> None:
    """Refuse where clusters cannot be emulated.

    Raises:
        InputError: with the reason.
    """
    reason = why_impossible()
    if reason is not None:
        raise InputError(reason)


def new_namespace() -> None:
    """Move this process into a network namespace of its own.

    Raises:
        OSError: not permitted.
    """
    _checked(_libc().unshare(_NEW_NETWORK))


def open_namespaces(count: int) -> list[int]:
    """File descriptors of new namespaces; this process ends up in the last one.

    Raises:
        OSError: not permitted.
    """
    handles = []
    for _ in range(count):
        new_namespace()
        handles.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    return handles


def enter(handle: int) -> None:
    """Move this process into an open namespace.

    Raises:
        OSError: not permitted.
    """
    _checked(_libc().setns(handle, _NEW_NETWORK))


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, even by SIGKILL.

    Args:
        parent: process id of the parent, to notice that it is gone already.
    """
    _checked(_libc().prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def run_batch(program: str, commands: Iterable[str]) -> None:
    """Run commands of ``ip`` or ``tc`` in this process's namespace.

    Raises:
        EmulationError: one failed; the message has what the program said.
    """
    text = "\n".join(commands) + "\n"
    done = subprocess.run(
        [program, "-batch", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise EmulationError(f"{program} failed while the emulated network was built: {done.stderr.strip()}")


def apply_settings(values: Mapping[str, str]) -> None:
    """Write settings below /proc/sys of this process's namespace.

    Raises:
        EmulationError: a setting that the kernel does not have or refuses.
    """
    for name, value in values.items():
        try:
            Path("/proc/sys", name).write_text(value)
        except OSError as error:
            raise EmulationError(f"the kernel refuses {name} = {value}: {error.strerror}") from None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
