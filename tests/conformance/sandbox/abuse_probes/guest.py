"""The guest: breaking it would turn a program's failure into one of the sandbox."""

import os
import resource
import struct

from probing import FACTS, probe, syscall


@probe
def limit_the_agent():
    guest = FACTS["guest_pid"]
    for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU):
        resource.prlimit(guest, which, (0, 0))
    return True


@probe
def limit_the_agent_with_a_dirty_upper_half():
    limits = struct.pack("QQ", 0, 0)
    return syscall(302, 261, FACTS["guest_pid"] | 1 << 32, 7, limits, 0)


@probe
def starve_the_agent_by_its_scheduler():
    os.sched_setscheduler(FACTS["guest_pid"], os.SCHED_IDLE, os.sched_param(0))
    return True


@probe
def starve_the_agent_by_its_priority():
    os.setpriority(os.PRIO_PROCESS, FACTS["guest_pid"], 19)
    return True


@probe
def starve_everything_of_the_user():
    os.setpriority(os.PRIO_USER, os.getuid(), 19)
    return True


@probe
def bind_the_agent_to_a_core():
    os.sched_setaffinity(FACTS["guest_pid"], [0])
    return True


@probe
def see_the_source_of_the_writable_places():
    return [path for path in ("/rw/tmp", "/rw/box", "/rw/shm") if os.path.exists(path)]


@probe
def remove_or_rename_a_writable_place():
    """Only for the inside: as root outside, it would rename them."""
    for place in ("/box", "/tmp", "/dev/shm"):
        for action in (os.rmdir, lambda path: os.rename(path, path + "-moved")):
            try:
                action(place)
            except OSError:
                continue
            return place
    return False


@probe
def take_another_jobs_mark():
    """The mark of job 1 on a process that has one already: one of the two limits would have to be raised."""
    base = 1 << 40
    above, below = resource.getrlimit(10)[1], resource.getrlimit(15)[1]
    if resource.RLIM_INFINITY in (above, below):
        return False  # no marks here
    job = 1 if above - base != 1 else 2
    resource.setrlimit(10, (base + job, base + job))
    resource.setrlimit(15, (base - job, base - job))
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
    """The same where the guest is not pid 1."""
    guest = FACTS["guest_pid"]
    targets = (guest, -guest, -1) if guest != 1 else (1,)
    for number in range(1, 65):
        for target in targets:
            try:
                os.kill(target, number)
            except OSError:
                continue
    return False
