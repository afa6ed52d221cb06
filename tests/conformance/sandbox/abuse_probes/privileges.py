"""Namespaces, mounts, privileges and limits."""

import ctypes
import glob
import os
import resource
import shutil
import socket
import struct
import subprocess

from probing import X86, call, content, libc, overwritten, probe, syscall


@probe
def new_user_namespace_by_unshare():
    return call(libc.unshare(0x10000000))


@probe
def new_user_namespace_by_clone():
    pid = libc.syscall(
        ctypes.c_long(56 if X86 else 220), ctypes.c_long(0x10000000 | 17), *[ctypes.c_long(0)] * 4
    )
    if pid == 0:
        os._exit(0)
    return call(pid)


@probe
def new_user_namespace_by_clone3():
    arguments = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
    pid = libc.syscall(ctypes.c_long(435), arguments, ctypes.c_long(len(arguments)))
    if pid == 0:
        os._exit(0)
    return call(pid)


@probe
def new_mount_namespace():
    return call(libc.unshare(0x20000))


@probe
def mount_tmpfs():
    return call(libc.mount(b"x", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None))


@probe
def unmount_proc():
    return call(libc.umount2(b"/proc", 2))


@probe
def remount_usr_writable():
    return call(libc.mount(b"none", b"/usr", None, ctypes.c_ulong(4096 | 32), None))


@probe
def new_mount_api():
    return syscall(430, 430, b"tmpfs", 0)


@probe
def chroot():
    os.chroot("/tmp")
    return True


@probe
def join_namespaces_of_pid_1():
    return call(libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))


@probe
def make_a_device():
    os.mknod("/tmp/abuse-device", 0o600 | 0o020000, os.makedev(1, 1))
    os.unlink("/tmp/abuse-device")
    return True


@probe
def gain_root_by_setuid():
    os.setuid(0)
    return os.getuid() == 0


@probe
def gain_root_by_a_setuid_program():
    su = shutil.which("su") or shutil.which("mount")
    done = subprocess.run(
        [su, "-c", "id -u"], stdin=subprocess.DEVNULL, capture_output=True, timeout=1
    )
    return done.stdout.strip() == b"0"


@probe
def have_capabilities():
    for line in content("/proc/self/status").splitlines():
        if line.startswith(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")) and int(
            line.split()[1], 16
        ):
            return line


@probe
def may_gain_new_privileges():
    return "NoNewPrivs:\t1" not in content("/proc/self/status")


@probe
def run_without_system_call_filter():
    return "Seccomp:\t2" not in content("/proc/self/status")


@probe
def write_core_pattern():
    path = "/proc/sys/kernel/core_pattern"
    return overwritten(path, content(path))


def raised(name):
    which = getattr(resource, name)
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY:
        return "no limit"
    resource.setrlimit(which, (hard + 1, hard + 1))
    return True


@probe
def raise_the_limit_of_processes():
    return raised("RLIMIT_NPROC")


@probe
def raise_the_limit_of_open_files():
    return raised("RLIMIT_NOFILE")


@probe
def raise_the_limit_of_file_sizes():
    return raised("RLIMIT_FSIZE")


@probe
def write_cgroup_files():
    for path in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True):
        return overwritten(path, str(os.getpid()))


@probe
def real_time_priority():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    return True


@probe
def higher_priority():
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    return True


@probe
def set_the_host_name():
    socket.sethostname("abuse")
    return True
