# ruff: noqa: E501 - programs
"""Programs that try to end in a way for which nobody would give them a 0: name → source, to be run with Python inside.

Families: exits, signals, memory, OOM score, descriptors, directories, output, threads and processes, limits, stdin, and
the interpreter itself. `VALUES` are functions for tests of returned values.
"""

from __future__ import annotations

EXITS = {
    **{
        f"exit {code}": f"import sys\nsys.exit({code})"
        for code in ("1", "3", "255", "256", "-1", "10**400", "float('nan')", "'text'", "'\\ud800'")
    },
    **{f"os._exit {code}": f"import os\nos._exit({code})" for code in (0, 1, 137, 255)},
    **{
        f"raise {name}": f"raise {name}"
        for name in (
            "KeyboardInterrupt",
            "GeneratorExit",
            "SystemExit",
            "MemoryError",
            "RecursionError",
            "OSError(28, 'No space left')",
            "BrokenPipeError",
            "EOFError",
            "ConnectionResetError",
            "BaseException('\\ud800')",
            "ValueError('x' * 50_000_000)",
            "BaseExceptionGroup('g', [KeyboardInterrupt(), SystemExit(0)])",
        )
    },
    "exit with an object that cannot be shown": (
        "class Bad:\n    def __repr__(self): raise SystemExit(0)\n    __str__ = __repr__\nraise SystemExit(Bad())"
    ),
    "an exception whose text raises": (
        "class Bad(Exception):\n    def __str__(self): raise KeyboardInterrupt\n    __repr__ = __str__\nraise Bad"
    ),
    "an exception whose class has no name": (
        "class Meta(type):\n    __name__ = property(lambda c: 1 / 0)\n"
        "class Bad(BaseException, metaclass=Meta): pass\nraise Bad"
    ),
    "an exception that is its own cause": (
        "a, b = ValueError(), TypeError()\na.__cause__, b.__cause__ = b, a\nraise a"
    ),
    "ten thousand causes": (
        "e = None\nfor i in range(10_000):\n    n = ValueError(i)\n    n.__cause__ = e\n    e = n\nraise e"
    ),
    "an exit function that raises": "import atexit\natexit.register(lambda: 1 / 0)\nraise ValueError",
    "an exit function that never ends": "import atexit, time\natexit.register(time.sleep, 1000)",
    "an excepthook that raises": "import sys\nsys.excepthook = lambda *a: 1 / 0\nraise ValueError",
    "a finalizer that raises": "class A:\n    def __del__(self): raise SystemExit(0)\nx = A()\nraise ValueError",
    "os._exit replaced": "import os\nos._exit = lambda code: None\nraise ValueError",
    "every exit replaced": (
        "import os, sys\nos._exit = sys.exit = os.abort = os.kill = lambda *a: None\nraise SystemExit(1)"
    ),
    "execv": "import os\nos.execv('/bin/false', ['false'])",
    "execv with a huge argument": "import os\nos.execv('/bin/true', ['x' * 10_000_000])",
    "execv of no program": "import os\nos.execv('/no/such/program', ['x'])",
}

SIGNALS = {
    **{
        f"signal {number} to itself": f"import os\nos.kill(os.getpid(), {number})"
        for number in (*range(1, 18), *range(18, 32), 34, 64)
        if number not in (19, 20, 21, 22)
    },
    "stop itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    **{
        f"signal {number} to the parent": f"import os\nos.kill(os.getppid(), {number})\nos._exit(5)"
        for number in (1, 2, 9, 15, 17, 19, 34)
    },
    "kill the group": "import os\nos.killpg(0, 9)",
    "kill everything": "import os\nos.kill(-1, 9)\nos._exit(5)",
    "kill pid 1": "import os\nfor n in range(1, 65):\n    try: os.kill(1, n)\n    except OSError: pass\nos._exit(5)",
    "every signal ignored": (
        "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ntime.sleep(1000)"
    ),
    "every signal blocked": (
        "import signal, time\nsignal.pthread_sigmask(0, range(1, 65))\ntime.sleep(1000)"
    ),
    "an alarm": "import signal, time\nsignal.alarm(1)\ntime.sleep(100)",
    "ten thousand queued signals": (
        "import os, signal\nsignal.pthread_sigmask(0, range(1, 65))\n"
        "for i in range(10_000): os.kill(os.getpid(), 34 + i % 30)\nos._exit(5)"
    ),
}

MEMORY = {
    "one huge object": "x = bytearray(1 << 40)",
    "a list without end": "x = []\nwhile True: x.append(bytearray(8 << 20))",
    "anonymous mappings": (
        "import mmap\nx = []\nwhile True:\n    m = mmap.mmap(-1, 8 << 20)\n    m.write(bytes(8 << 20)); x.append(m)"
    ),
    "memory files": (
        "import os\nx = []\nwhile True:\n    x.append(os.memfd_create('x'))\n    os.write(x[-1], bytes(8 << 20))"
    ),
    "shared memory files": (
        "i = 0\nwhile True:\n    i += 1\n    open(f'/dev/shm/{i}', 'wb').write(bytes(4 << 20))"
    ),
    "recursion": "def f(): return f()\nf()",
    "recursion without a limit": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(): return f()\nf()",
    "a null pointer": "import ctypes\nctypes.string_at(0)",
    "an illegal instruction": (
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(b'\\x0f\\x0b' * 8)\n"
        "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    ),
    "deep structure shown": (
        "x = []\nfor i in range(200_000): x = [x]\nimport sys\nsys.setrecursionlimit(1 << 30)\nrepr(x)"
    ),
    "memory after the OOM score is reset": (
        "for score in ('-1000', '0'):\n"
        "    try: open('/proc/self/oom_score_adj', 'w').write(score)\n    except OSError: pass\n"
        "x = []\nwhile True: x.append(bytearray(4 << 20))"
    ),
    "sockets after the OOM score is reset": (
        "import socket\n"
        "try: open('/proc/self/oom_score_adj', 'w').write('0')\nexcept OSError: pass\n"
        "kept = []\n"
        "while True:\n"
        "    a, b = socket.socketpair()\n"
        "    a.setblocking(False)\n"
        "    kept.append((a, b))\n"
        "    try:\n        while True: a.send(bytes(65536))\n    except BlockingIOError: pass"
    ),
    "children share the memory": (
        "import os, time\nfor i in range(8):\n"
        "    if os.fork() == 0:\n        x = bytearray(48 << 20)\n        time.sleep(0.3)\n        os._exit(0)\n"
        "for i in range(8): os.wait()\nraise SystemExit(5)"
    ),
    "a System V segment": (
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
        "for i in range(64):\n    if c.shmget(0, 16 << 20, 0o1600) < 0: break\nraise SystemExit(5)"
    ),
    "System V semaphores": (
        "import ctypes\nc = ctypes.CDLL(None)\n"
        "for i in range(2000):\n    if c.semget(0, 32000, 0o1600) < 0: break\nraise SystemExit(5)"
    ),
}

DESCRIPTORS = {
    "every descriptor open": (
        "import os\nx = []\nwhile True: x.append(os.open('/dev/null', os.O_RDONLY))"
    ),
    "every descriptor closed": "import os\nos.closerange(0, 4096)\nraise ValueError",
    "standard streams closed": "import os\nos.close(0); os.close(1); os.close(2)\nraise ValueError",
    "stdout is None": "import sys\nsys.stdout = None\nraise ValueError",
    "all streams are None": "import sys\nsys.stdout = sys.stderr = sys.stdin = None\nraise ValueError",
    "stdout is something else": (
        "import sys\nclass S:\n    def __getattr__(self, name): raise SystemExit(0)\n"
        "sys.stdout = sys.stderr = S()\nraise ValueError"
    ),
    "stdout does not block": (
        "import os, sys\nos.set_blocking(1, False)\nfor i in range(100): os.write(1, b'x' * 65536)\nsys.exit(5)"
    ),
    "nonsense to every descriptor": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\xff' * 4096)\n    except OSError: pass\nos._exit(5)"
    ),
    "a flood to every descriptor": (
        "import os\nwhile True:\n    for fd in range(3, 16):\n        try: os.write(fd, bytes(65536))\n"
        "        except OSError: pass"
    ),
    "a flood of frames to descriptor 3": (
        "import os, struct\nframe = struct.pack('!IBI', 4000, 2, 7) + bytes(4000)\n"
        "while True:\n    try: os.write(3, frame)\n    except OSError: raise SystemExit(5)"
    ),
    "forged answers on descriptor 3": (
        "import os, struct\nbody = b'{\"value\": {\"a\": ' + b'[' * 3000 + b']' * 3000 + b'}}'\n"
        "for n in range(50):\n    try: os.write(3, struct.pack('!IBI', len(body), 2, n) + body)\n"
        "    except OSError: pass\nos._exit(5)"
    ),
    "descriptor 3 closed": "import os\ntry: os.close(3)\nexcept OSError: pass\nraise ValueError",
    "descriptor 3 read dry": (
        "import os\ntry: os.set_blocking(3, False); os.read(3, 1 << 20)\nexcept OSError: pass\nraise ValueError"
    ),
    "descriptor 3 shut down": (
        "import socket\ntry: socket.socket(fileno=3).shutdown(2)\nexcept OSError: pass\nraise ValueError"
    ),
    "descriptors in flight": (
        "import array, socket\nkept = []\n"
        "try:\n    while True:\n        a, b = socket.socketpair()\n        a.setblocking(False)\n"
        "        kept.append((a, b))\n"
        "        try:\n            while True: a.sendmsg([b'x'], [(1, 1, array.array('i', [0] * 250))])\n"
        "        except BlockingIOError: pass\n"
        "except OSError: raise SystemExit(5)"
    ),
    "pipes filled": (
        "import os\nkept = []\ntry:\n    while True:\n        r, w = os.pipe()\n        os.set_blocking(w, False)\n"
        "        kept.append((r, w))\n        try: os.write(w, bytes(1 << 20))\n        except BlockingIOError: pass\n"
        "except OSError: raise SystemExit(5)"
    ),
    "epolls of epolls": (
        "import select\nkept = [select.epoll()]\ntry:\n    while True:\n        e = select.epoll()\n"
        "        for other in kept[-5:]: e.register(other.fileno(), 1)\n        kept.append(e)\n"
        "except OSError: raise SystemExit(5)"
    ),
    "watches of files": (
        "import ctypes, os\nc = ctypes.CDLL(None)\nfor i in range(300): c.inotify_init()\nos._exit(5)"
    ),
}

DIRECTORIES = {
    "1500 nested directories": (
        "import os\nfor i in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nraise ValueError"
    ),
    "1500 nested directories in shared memory": (
        "import os\nos.chdir('/dev/shm')\nfor i in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nraise ValueError"
    ),
    "60 nested names of 250 letters": (
        "import os\nfor i in range(60):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)\nraise ValueError"
    ),
    "60 nested long names in /tmp": (
        "import os\nos.chdir('/tmp')\nfor i in range(60):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)\nraise ValueError"
    ),
    "nested directories without rights": (
        "import os\nfor i in range(20):\n    os.mkdir('d')\n    os.chdir('d')\n"
        "for i in range(19):\n    os.chdir('..')\n    os.chmod('d', 0)\nraise ValueError"
    ),
    "every directory removed": (
        "import os, shutil\nhere = os.getcwd()\n"
        "for path in (here, '/rw/tmp', '/rw/box', '/rw/shm', '/rw', '/tmp', '/box', '/dev/shm', os.environ.get('TMPDIR', '/tmp')):\n"
        "    try: os.rmdir(path)\n    except OSError: pass\n"
        "    if path != here: shutil.rmtree(path, ignore_errors=True)\nraise ValueError"
    ),
    "directories renamed": (
        "import os\nhere = os.getcwd()\n"
        "for path in (here, '/rw/tmp', '/rw/box', '/tmp', '/box', '/dev/shm', os.environ.get('TMPDIR', '/tmp')):\n"
        "    try: os.rename(path, path + '-moved')\n    except OSError: pass\nraise ValueError"
    ),
    "a file in the place of the directory": (
        "import os\nhere = os.getcwd()\nos.chdir('/')\n"
        "try:\n    os.rmdir(here)\n    open(here, 'w').close()\nexcept OSError: pass\nraise ValueError"
    ),
    "a link in the place of the directory": (
        "import os\nhere = os.getcwd()\nos.chdir('/')\n"
        "try:\n    os.rmdir(here)\n    os.symlink('/', here)\nexcept OSError: pass\nraise ValueError"
    ),
    "names that are not text": (
        "import os\nfor i in range(1, 256):\n"
        "    try: os.mkdir(bytes([i]) * 20)\n    except OSError: pass\nraise ValueError"
    ),
    "a directory of many directories": (
        "import os\nfor i in range(1000):\n    os.makedirs(f'{i}/a')\n    open(f'{i}/a/f', 'w').close()\nraise ValueError"
    ),
    "links in a circle": (
        "import os\nos.symlink('a', 'b'); os.symlink('b', 'a'); os.symlink('.', 'c'); os.symlink('/', 'd')\nraise ValueError"
    ),
    "pipes and sockets as files": (
        "import os, socket\nos.mkfifo('/tmp/fifo')\n"
        "try: socket.socket(socket.AF_UNIX).bind('/tmp/socket')\nexcept OSError: pass\nraise ValueError"
    ),
    "every inode used": "i = 0\nwhile True:\n    i += 1\n    open(f'/tmp/f{i}', 'w').close()",
    "every byte used": (
        "import os\nf = open('/tmp/fill', 'wb')\n"
        "while True:\n    f.write(bytes(1 << 20))\n    f.flush()"
    ),
    "a sparse file": "import os\nos.close(os.open('/tmp/s', 66, 0o600))\nos.truncate('/tmp/s', 1 << 50)",
    "umask": "import os\nos.umask(0o777)\nopen('/tmp/f', 'w').close()\nos.mkdir('/tmp/d')\nraise ValueError",
    "cwd in /proc": "import os\nos.chdir('/proc/self')\nraise ValueError",
}

OUTPUT = {
    "stdout without end": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "stderr without end": "import os\nwhile True: os.write(2, b'x' * 65536)",
    "both in turns": "import os\nwhile True:\n    os.write(1, b'x' * 4096)\n    os.write(2, b'y' * 4096)",
    "byte by byte": "import os\nfor i in range(100_000): os.write(1, b'x')\nos._exit(5)",
    "bytes that are not text": "import os\nos.write(1, bytes(range(256)) * 100)\nos.write(2, b'\\xff\\xfe' * 100)\nos._exit(5)",
    "lone surrogates": "import sys\nprint('\\ud800', file=sys.stderr)\nraise ValueError('\\udfff')",
    "control sequences": "import sys\nsys.stderr.write('\\x1b[2J\\x00\\r' * 1000)\nraise ValueError",
    "a number of 5000 digits": "print(10 ** 5000)",
    "ten million numbers": "print(*range(10_000_000))",
}

PROCESSES = {
    "fork without end": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "detached fork without end": (
        "import os\nwhile True:\n    try:\n        if os.fork() == 0:\n            os.setsid()\n"
        "            if os.fork(): os._exit(0)\n    except OSError: pass"
    ),
    "a fork that goes on": "import os\nos.fork()\nraise ValueError",
    "a parent that ends first": "import os, time\nif os.fork():\n    os._exit(5)\ntime.sleep(1000)",
    "a daemon that holds the pipes": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)\nos._exit(5)"
    ),
    "a hundred zombies": (
        "import os, time\nfor i in range(100):\n    try:\n        if os.fork() == 0: os._exit(0)\n    except OSError: break\n"
        "os._exit(5)"
    ),
    "children that burn time unseen": (
        "import os, signal\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: pass\n"
        "for i in range(4):\n    if os.fork() == 0:\n        while True: pass\nwhile True: pass"
    ),
    "a thread that never ends": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nraise ValueError",
    "a thread that raises": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()\nraise ValueError",
    "a thread that ends the process": (
        "import os, threading, time\nthreading.Thread(target=os._exit, args=(7,)).start()\ntime.sleep(10)"
    ),
    "threads without end": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    ),
    "a subprocess that fails": "import subprocess\nsubprocess.run('exit 3', shell=True, check=True)",
    "vfork": "import ctypes\nctypes.CDLL(None).vfork()\nraise ValueError",
    "a session and a group of its own": (
        "import os\ntry: os.setsid()\nexcept OSError: pass\ntry: os.setpgid(0, 0)\nexcept OSError: pass\nraise ValueError"
    ),
    "another job's mark": (
        "import os, time\n"
        "for job in range(1, 20):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        os.execve('/bin/sleep', ['sleep', '1000'], {'SANDBOX_JOB': str(job)})\nos._exit(5)"
    ),
}

LIMITS = {
    **{
        f"limit {name} 0": (
            f"import resource\nresource.setrlimit(resource.{name}, (0, 0))\n"
            "open('/tmp/x', 'w').write('x'); raise ValueError"
        )
        for name in (
            "RLIMIT_NOFILE",
            "RLIMIT_FSIZE",
            "RLIMIT_AS",
            "RLIMIT_STACK",
            "RLIMIT_DATA",
            "RLIMIT_NPROC",
            "RLIMIT_CPU",
        )
    },
    "limits of the parent": (
        "import os, resource\nfor which in range(16):\n"
        "    try: resource.prlimit(os.getppid(), which, (0, 0))\n    except (OSError, ValueError): pass\nos._exit(5)"
    ),
    "lowest priority": "import os\nos.nice(19)\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass",
    "strict seccomp": "import ctypes\nctypes.CDLL(None).prctl(22, 1, 0, 0, 0)\nopen('/tmp/x')",
    "not dumpable": "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nraise ValueError",
    "dies with its parent": "import ctypes\nctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\nraise ValueError",
    "a name of its own": "import ctypes\nctypes.CDLL(None).prctl(15, b') R 1 1 (x', 0, 0, 0)\nraise ValueError",
    "a timer": "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(100)",
}

STDIN = {
    "input without end": "while True: input()",
    "stdin closed": "import sys\nsys.stdin.close()\ninput()",
    "stdin does not block": "import os\nos.set_blocking(0, False)\nwhile True:\n    if not os.read(0, 100): raise SystemExit(5)",
    "stdin written": "import os\nos.write(0, b'x')\nos._exit(5)",
    "stdin truncated": "import os\ntry: os.ftruncate(0, 0)\nexcept OSError: pass\nos._exit(5)",
    "stdin is another file": "import os\nos.dup2(os.open('/dev/zero', os.O_RDONLY), 0)\ninput()",
    "waits for ever": "import threading\nthreading.Event().wait()",
}

INTERPRETER = {
    "no builtins": "import builtins\nbuiltins.__dict__.clear()\nx",
    "no modules": "import sys\nsys.modules.clear()\nraise ValueError",
    "no environment": "import os\nos.environ.clear()\nraise ValueError",
    "json replaced": "import json\njson.dumps = json.loads = lambda *a, **k: 1 / 0\nraise ValueError",
    "a trace function that raises": "import sys\nsys.settrace(lambda *a: 1 / 0)\n(lambda: 0)()\nraise ValueError",
    "a syntax error": "print(",
    "a null character": "x = '\\0'; exec('\\0')",
    "a huge constant": "x = 10 ** (10 ** 8); str(x)",
    "an assertion": "assert False, '\\ud800'",
    "sleep": "import time\ntime.sleep(1e9)",
    "a loop": "while True: pass",
    "a regular expression": "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "a loop that cannot be interrupted": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    ),
    "a deep expression": "eval('(' * 5000 + ')' * 5000)",
    "a deep syntax tree": "compile('-' * 200_000 + '1', 'x', 'eval')",
}

ENDINGS: dict[str, str] = {
    **EXITS,
    **SIGNALS,
    **MEMORY,
    **DESCRIPTORS,
    **DIRECTORIES,
    **OUTPUT,
    **PROCESSES,
    **LIMITS,
    **STDIN,
    **INTERPRETER,
}

END_THE_WORKER = {
    *(f"signal {number} to the parent" for number in (1, 2, 9, 15, 17, 19, 34)),
    "kill everything",
    "every exit replaced",
    "limits of the parent",
    "fork without end",
    "detached fork without end",
}
"""In `CodeEnv`, they may also end what runs the tests: then the tests after them do not run."""

VALUES = {
    "10**400": "10 ** 400",
    "-10**400": "-10 ** 400",
    "10**5000": "10 ** 5000",
    "nan": "float('nan')",
    "inf": "float('inf')",
    "1e400": "1e400",
    "a complex number": "1j",
    "bytes": "b'x'",
    "a lone surrogate": "'\\ud800'",
    "a long text": "'x' * 10_000_000",
    "a deep list": "__import__('functools').reduce(lambda x, _: [x], range(100_000), [])",
    "a list of depth 900": "__import__('functools').reduce(lambda x, _: [x], range(900), [])",
    "a list in itself": "(lambda x: x.append(x) or x)([])",
    "a set that cannot be sorted": "{1, 'a', None}",
    "keys that are no texts": "{(1, 2): 3}",
    "mixed keys": "{1: 2, None: 3, True: 4}",
    "an endless generator": "__import__('itertools').count()",
    "an object": "object()",
    "a class": "int",
    "a module": "__import__('sys')",
    "an object equal to everything": "type('E', (), {'__eq__': lambda *a: True, '__hash__': None})()",
    "an object whose comparison raises": "type('E', (int,), {'__eq__': lambda *a: 1 / 0, '__hash__': None})(3)",
    "an object whose text raises": "type('R', (), {'__repr__': lambda s: 1 / 0})()",
    "an object that is its own list": "type('L', (), {'tolist': lambda s: s})()",
    "a list of 10**6 numbers": "list(range(10 ** 6))",
    "a text that is a list": "type('S', (str,), {'__iter__': lambda s: 1 / 0})('1')",
    "an infinite list": "type('I', (list,), {'__iter__': lambda s: iter(int, 1)})([1])",
    "a fraction": "__import__('fractions').Fraction(1, 3)",
    "a decimal": "__import__('decimal').Decimal('sNaN')",
}
"""What a function may return where a number is expected."""
