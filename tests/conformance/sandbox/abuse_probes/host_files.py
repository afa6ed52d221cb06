"""Files of the host, to be read or changed."""

import os

from probing import FACTS, content, probe


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
