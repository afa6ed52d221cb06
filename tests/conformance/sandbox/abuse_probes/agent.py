"""The agent: breaking it would turn a program's failure into one of the sandbox."""

import os
import resource
import struct

from probing import FACTS, probe, syscall


@probe
def limit_the_agent():
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
