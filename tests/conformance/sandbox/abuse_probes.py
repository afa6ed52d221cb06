# ruff: noqa: T201 - what it prints is its result
"""Ways out of a sandbox, each tried in a process of its own. Standard library only: it runs inside.

usage: abuse_probes.py FACTS.json    prints {"probe": "allowed: …" | "denied: …"}
A probe returns a true value when it got through; an exception or a false value means that it was stopped.
"""

import ctypes
import errno
import fcntl
import glob
import json
import os
import signal
import socket
import struct
import sys
import threading

FACTS = {}
PROBES = {}
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"


def probe(function):
    PROBES[function.__name__] = function
    return function


def call(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True


def syscall(x86, arm, *arguments):
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return call(libc.syscall(ctypes.c_long(x86 if X86 else arm), *converted))


def opened(path, flags=os.O_RDONLY):
    os.close(os.open(path, flags | os.O_NONBLOCK))
    return True


def content(path):
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")


def overwritten(path, text):
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, text.encode())
    os.close(descriptor)
    return True


# --- files of the host


@probe
def read_etc_shadow():
    return content("/etc/shadow")


@probe
def list_root_home():
    return [n for n in os.listdir("/root") if n not in (".pyenv", ".local", ".venv")]


@probe
def read_a_host_file():
    return content(FACTS["host_file"])


@probe
def see_the_host_tmp():
    return os.path.exists(FACTS["host_tmp_file"])


@probe
def see_home_directories():
    return os.listdir("/home")


@probe
def read_host_sources_beside_the_agent():
    return os.listdir(FACTS["repository"])


@probe
def write_usr():
    open("/usr/abuse", "w").close()
    os.unlink("/usr/abuse")
    return True


@probe
def write_etc():
    open("/etc/abuse", "w").close()
    os.unlink("/etc/abuse")
    return True


@probe
def write_into_the_interpreter():
    path = os.path.join(os.path.dirname(os.__file__), "abuse.py")
    open(path, "w").close()
    os.unlink(path)
    return True


@probe
def climb_out_by_dots():
    return os.path.exists("../" * 40 + FACTS["host_file"].lstrip("/"))


@probe
def walk_through_proc_root():
    return os.path.exists(f"/proc/1/root{FACTS['host_file']}") or os.listdir("/proc/1/root")


@probe
def walk_through_proc_cwd():
    return os.listdir("/proc/1/cwd")


# --- the process that runs the sandbox


@probe
def read_the_parents_secrets():
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if FACTS["secret"] in content(path):
                return path
        except OSError:
            continue


@probe
def read_environ_of_pid_1():
    return content("/proc/1/environ")


@probe
def read_memory_of_pid_1():
    return opened("/proc/1/mem")


@probe
def read_maps_of_pid_1():
    return content("/proc/1/maps")


@probe
def list_descriptors_of_pid_1():
    return os.listdir("/proc/1/fd")


@probe
def ptrace_pid_1():
    PTRACE_SEIZE = 0x4206
    return syscall(101, 117, PTRACE_SEIZE, 1, 0, 0)


@probe
def ptrace_another_process():
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        return syscall(101, 117, 0x4206, child, 0, 0)
    finally:
        os.kill(child, 9)


@probe
def process_vm_readv_pid_1():
    buffer = ctypes.create_string_buffer(8)
    vector = struct.pack("PN", ctypes.addressof(buffer), 8)
    return syscall(310, 270, 1, vector, 1, vector, 1, 0)


@probe
def take_a_descriptor_of_pid_1():
    descriptor = os.pidfd_open(1)
    return syscall(438, 438, descriptor, 3, 0)


@probe
def lower_the_oom_score():
    return overwritten("/proc/self/oom_score_adj", "-1000")


@probe
def change_the_oom_score_of_pid_1():
    return overwritten("/proc/1/oom_score_adj", "1000")


@probe
def see_host_processes():
    return os.path.exists(f"/proc/{FACTS['host_pid']}/stat") and "python" in content(
        f"/proc/{FACTS['host_pid']}/cmdline"
    )


@probe
def signal_a_host_process():
    os.kill(FACTS["host_pid"], 0)
    return True


@probe
def signal_a_sibling():
    os.kill(FACTS["sibling_pid"], 0)
    return True


# --- network


def connected(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(1)
        s.connect(address)
    return True


@probe
def connect_to_host_loopback():
    return connected(socket.AF_INET, ("127.0.0.1", FACTS["host_port"]))


@probe
def connect_to_host_loopback_v6():
    return connected(socket.AF_INET6, ("::1", FACTS["host_port"]))


@probe
def connect_to_the_host_by_its_address():
    return connected(socket.AF_INET, (FACTS["host_address"], FACTS["host_port"]))


@probe
def connect_to_host_abstract_socket():
    return connected(socket.AF_UNIX, "\0" + FACTS["host_abstract"])


@probe
def connect_to_host_socket_file():
    return connected(socket.AF_UNIX, FACTS["host_socket"])


@probe
def connect_to_sibling_loopback():
    return connected(socket.AF_INET, ("127.0.0.1", FACTS["sibling_port"]))


@probe
def connect_to_sibling_abstract_socket():
    return connected(socket.AF_UNIX, "\0" + FACTS["sibling_abstract"])


@probe
def connect_to_the_internet():
    return connected(socket.AF_INET, ("192.0.2.1", 80), socket.SOCK_DGRAM)


@probe
def connect_to_a_metadata_service():
    return connected(socket.AF_INET, ("169.254.169.254", 80), socket.SOCK_DGRAM)


@probe
def see_interfaces_of_the_host():
    return [
        name
        for _, name in socket.if_nameindex()
        if name != "lo"
        and "tun" not in name
        and not name.startswith(("sit", "gre", "erspan", "ip6", "teql", "dummy"))
    ]


def made(family, kind, protocol=0):
    socket.socket(family, kind, protocol).close()
    return True


@probe
def vsock_to_the_hypervisor():
    return made(40, socket.SOCK_STREAM)


@probe
def packet_socket():
    return made(17, socket.SOCK_RAW, 0x300)


@probe
def raw_icmp_socket():
    return made(socket.AF_INET, socket.SOCK_RAW, 1)


@probe
def kernel_crypto_socket():
    return made(38, socket.SOCK_SEQPACKET)


@probe
def netlink_audit_socket():
    return made(16, socket.SOCK_RAW, 9)


@probe
def bluetooth_socket():
    return made(31, socket.SOCK_RAW, 1)


@probe
def raise_an_interface():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sH14s", b"lo", 0, b""))
    return True


# --- namespaces, mounts, privileges


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
    import shutil
    import subprocess

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
    import resource

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


# --- kernel surfaces


@probe
def bpf():
    return syscall(321, 280, 0, struct.pack("IIII", 2, 4, 4, 1) + bytes(100), 116)


@probe
def perf_events():
    return syscall(298, 241, struct.pack("II", 1, 112) + bytes(104), 0, -1, -1, 0)


@probe
def io_uring():
    return syscall(425, 425, 8, bytes(120))


@probe
def userfaultfd():
    return syscall(323, 282, 1)


@probe
def kernel_keys():
    return syscall(248, 217, b"user", b"abuse", b"x", 1, -3)


@probe
def open_by_handle():
    return syscall(304, 265, -100, bytes(136), 0) or True


@probe
def read_the_kernel_log():
    return syscall(103, 116, 3, ctypes.create_string_buffer(4096), 4096)


@probe
def kernel_log_device():
    return opened("/dev/kmsg")


@probe
def kernel_addresses():
    return any(
        not line.startswith("0000000000000000") for line in content("/proc/kallsyms").splitlines()
    )


@probe
def disk_device():
    return [
        path for path in glob.glob("/dev/[vsx]d[a-z]") + glob.glob("/dev/nvme*") if opened(path)
    ]


@probe
def memory_device():
    return opened("/dev/mem") or opened("/dev/port")


@probe
def kvm_device():
    return opened("/dev/kvm", os.O_RDWR)


@probe
def fuse_device():
    return opened("/dev/fuse", os.O_RDWR)


@probe
def tun_device():
    return opened("/dev/net/tun", os.O_RDWR)


@probe
def gpu_device():
    return glob.glob("/dev/nvidia*") + glob.glob("/dev/dri/*")


@probe
def sysrq():
    opened("/proc/sysrq-trigger", os.O_WRONLY)
    return True


@probe
def write_sys():
    return [
        path
        for path in ("/sys/kernel/uevent_helper", "/sys/power/state")
        if opened(path, os.O_WRONLY)
    ]


@probe
def push_input_into_a_terminal():
    fcntl.ioctl(0, 0x5412, b"x")
    return True


@probe
def push_input_with_a_dirty_upper_half():
    return syscall(16, 29, 0, 0x5412 | (1 << 32), b"x")


@probe
def set_the_clock():
    import time

    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return True


@probe
def load_a_kernel_module():
    number = libc.syscall(ctypes.c_long(175 if X86 else 105), b"", ctypes.c_long(0), b"")
    return ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS) or number == 0


@probe
def x32_system_calls():
    # The same call under another number would slip past a filter that compares numbers only.
    return call(
        libc.syscall(
            ctypes.c_long(0x40000000 | 165), b"x", b"/tmp", b"tmpfs", ctypes.c_long(0), None
        )
    )


@probe
def system_calls_newer_than_the_filter():
    libc.syscall(ctypes.c_long(470), *[ctypes.c_long(0)] * 4)
    return ctypes.get_errno() != errno.ENOSYS


@probe
def namespaces_by_clone_in_a_thread():
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(libc.unshare(0x10000000)))
    thread.start()
    thread.join()
    return outcome == [0]


# --- the agent: breaking it would turn a program's failure into one of the sandbox


@probe
def limit_the_agent():
    import resource

    agent = FACTS["agent_pid"]
    for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU):
        resource.prlimit(agent, which, (0, 0))
    return True


@probe
def limit_the_agent_with_a_dirty_upper_half():
    limits = struct.pack("QQ", 0, 0)
    return syscall(302, 261, FACTS["agent_pid"] | 1 << 32, 7, limits, 0)


@probe
def starve_the_agent_by_its_scheduler():
    os.sched_setscheduler(FACTS["agent_pid"], os.SCHED_IDLE, os.sched_param(0))
    return True


@probe
def starve_the_agent_by_its_priority():
    os.setpriority(os.PRIO_PROCESS, FACTS["agent_pid"], 19)
    return True


@probe
def starve_everything_of_the_user():
    os.setpriority(os.PRIO_USER, os.getuid(), 19)
    return True


@probe
def bind_the_agent_to_a_core():
    os.sched_setaffinity(FACTS["agent_pid"], [0])
    return True


@probe
def signals_to_pid_1():
    """Harmless if pid 1 survives, which the test looks at afterwards."""
    for number in range(1, 65):
        try:
            os.kill(1, number)
        except OSError:
            return False
    return False


@probe
def signals_to_the_agent():
    """The same where the agent is not pid 1."""
    agent = FACTS["agent_pid"]
    targets = (agent, -agent, -1) if agent != 1 else (1,)
    for number in range(1, 65):
        for target in targets:
            try:
                os.kill(target, number)
            except OSError:
                continue
    return False


def attempt(function):
    """The outcome of one probe, from a forked child that may die or hang."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(3)
        try:
            outcome = function()
            text = f"allowed: {str(outcome)[:120]}" if outcome else "denied: nothing found"
        except BaseException as error:
            text = f"denied: {type(error).__name__}: {error}"
        os.write(write_end, text.encode()[:1000])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return text or f"denied: the probe was killed (status {status})"


if __name__ == "__main__":
    FACTS.update(json.loads(content(sys.argv[1])), agent_pid=os.getppid())
    wanted = sys.argv[2:] or list(PROBES)
    print(json.dumps({name: attempt(PROBES[name]) for name in wanted}))
