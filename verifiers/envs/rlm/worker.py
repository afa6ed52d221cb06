"""The REPL worker of `RLMEnv`: it runs inside a sandbox and executes the code of one rollout.

This file is sent as text, after `customize_worker_script`, and needs Python 3.9 only. Requests are JSON lines on stdin:
`{"code", "seq"}` is answered by one JSON line on stdout, `{"history"}` writes the file `.messages`. Tools of the
environment are called over HTTP. Bash code calls them through a port of this process.
"""

import ast
import io
import json
import linecache
import os
import select
import socket
import sys
import threading
import traceback
import types

SETTINGS = json.loads(sys.argv[1])
fs_root = SETTINGS["fs_root"]
control_dir = SETTINGS["control_dir"]
TOOL_NAMES = json.loads(os.environ.get("RLM_ROOT_TOOL_NAMES") or "[]")
LIMIT_BYTES = 4 * SETTINGS["max_output_length"] + 64
"""Kept bytes of each output stream of an execution. The rest would be cut on the host."""
MARK_BYTES = 24
SHORT_BYTES = 1000
READY_WORDS = ("1", "true", "yes", "y", "on")
OWN_PID = os.getpid()

os.makedirs(fs_root, exist_ok=True)
os.makedirs(control_dir, exist_ok=True)
os.chdir(fs_root)
extra_data = fs_root


# ------------------------------------------------------------------------------------------------- calls to the host


idle: "list[socket.socket]" = []
"""Open connections to the host that no thread uses."""


def connect(host: str, port: int) -> socket.socket:
    """Return an open connection that is idle, or a new one."""
    while idle:
        stream = idle.pop()
        if not select.select([stream], [], [], 0)[0]:
            return stream
        stream.close()  # data or an end means that the host has closed it
    stream = socket.create_connection((host, port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def post(url: str, body: object) -> dict:
    """Send JSON to a URL of the host and return the JSON of its response, for any status."""
    address, _, path = url.partition("://")[2].partition("/")
    host, _, port = address.partition(":")
    data = json.dumps(body).encode()
    key = os.environ.get("OPENAI_API_KEY", "")
    head = f"POST /{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    stream = connect(host, int(port or 80))
    try:
        stream.sendall(head.encode() + data)
        response = read_response(stream)
    except BaseException:
        stream.close()  # the rest of this response must not be taken for the next one
        raise
    idle.append(stream)
    return json.loads(response)


def read_response(stream: socket.socket) -> bytes:
    """Return the body of an HTTP response that states its length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(stream)
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    pieces = [body]
    left = length - len(body)
    while left > 0:
        pieces.append(receive(stream))
        left -= len(pieces[-1])
    return b"".join(pieces)


def receive(stream: socket.socket) -> bytes:
    """Return the next bytes. Raises ConnectionError if there are none."""
    data = stream.recv(1 << 16)
    if not data:
        raise ConnectionError("The connection to the host ended before the response.")
    return data


def call_tool(name: str, args: list, kwargs: dict) -> object:
    """Call a tool of the environment on the host and return its result. Raises RuntimeError with its error."""
    body = {"tool_name": name, "args": args, "kwargs": kwargs}
    reply = post(os.environ["RLM_ROOT_TOOL_URL"], body)
    if "error" in reply:
        error = reply["error"]
        raise RuntimeError(error.get("message") if isinstance(error, dict) else error)
    return reply["result"] if "result" in reply else reply["result_repr"]


def tool_function(name: str) -> object:
    """Return the function by which Python code calls a tool."""

    def tool(*args: object, **kwargs: object) -> object:
        return call_tool(name, list(args), kwargs)

    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = f"Run the tool `{name}` of the environment. Arguments and result pass as JSON."
    return tool


# ------------------------------------------------------------------------------------------------------ output


class OutputPipe:
    """One standard stream of this process and of the programs that the code starts."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._source, self._sink = os.pipe()
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._mark = b""
        self._is_over = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def begin(self) -> None:
        """Forget earlier output. The code may have closed or replaced the descriptor, so it is set again."""
        with self._lock:
            self._kept.clear()
        os.dup2(self._sink, self._descriptor)

    def end(self) -> str:
        """Return the beginning of the output since `begin`."""
        self._is_over.clear()
        self._mark = os.urandom(MARK_BYTES)
        os.write(self._sink, self._mark)
        self._is_over.wait()
        with self._lock:
            return self._kept.decode("utf-8", "replace")

    def _read(self) -> None:
        pending = b""
        while True:
            pending += os.read(self._source, 1 << 16)
            at = pending.find(self._mark) if self._mark else -1
            is_over = at >= 0
            if is_over:
                own, pending = pending[:at], pending[at + MARK_BYTES :]
                self._mark = b""
            else:
                own, pending = pending[:-MARK_BYTES], pending[-MARK_BYTES:]
            with self._lock:
                self._kept += own[: max(0, LIMIT_BYTES - len(self._kept))]
            if is_over:
                self._is_over.set()


def text_writer(descriptor: int) -> io.TextIOWrapper:
    """Return a text stream for a standard stream."""
    return open(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)


# ------------------------------------------------------------------------------------------------------ Python


answer = {"content": "", "ready": False}
main_module = types.ModuleType("__main__")
namespace = main_module.__dict__
namespace.update(
    {
        "__builtins__": __builtins__,
        "answer": answer,
        "extra_data": extra_data,
        **{name: tool_function(name) for name in TOOL_NAMES},
    }
)


def run_python(code: str, number: int) -> "tuple[str, str | None]":
    """Run a cell. Return its status, and the value of a trailing expression or the traceback."""
    name = f"<repl-{number}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr):
            exec(compile(tree, name, "exec"), namespace)
            return "ok", None
        tree.body.pop()
        exec(compile(tree, name, "exec"), namespace)
        value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
        return "ok", None if value is None else repr(value)[:LIMIT_BYTES]
    except BaseException as error:  # noqa: BLE001 - any error of the code is its result; SystemExit ends nothing
        return "error", traceback_of(error, name)[-LIMIT_BYTES:]


def traceback_of(error: BaseException, name: str) -> str:
    """Return the traceback without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # noqa: BLE001 - an exception class of the code can fail in its own __str__
        return f"{type(error).__name__}: (the text of this error cannot be shown)"


def python_answer() -> dict:
    """Return the variable `answer` as the host reads it."""
    own = namespace.get("answer")
    if not isinstance(own, dict):
        return {"ready": False, "content": "" if own is None else str(own)}
    content = own.get("content")
    try:
        json.dumps(content)
    except (TypeError, ValueError):
        content = str(content)
    return {"ready": bool(own.get("ready")), "content": "" if content is None else content}


# -------------------------------------------------------------------------------------------------------- Bash

SHELL_SCRIPT = r"""
cd -- "$RLM_DIRECTORY" 2>/dev/null || cd -- "$RLM_FS_ROOT"
_rlm_call() {
  local text="" port status
  if [[ $# == 1 || ( $# == 2 && ( $2 == --json || $2 == --lines ) ) ]]; then
    text=$(cat; printf .)
    text=${text%.}
  fi
  exec {port}<>"/dev/tcp/127.0.0.1/$RLM_TOOL_PORT" || return 1
  printf '%s\0' "$RLM_TOOL_TOKEN" "$#" "$@" "$text" >&"$port"
  IFS= read -r -d '' -u "$port" status
  if [[ $status == *s ]]; then  # short: a program costs more than reading byte by byte
    status=${status%s}
    IFS= read -r -d '' -u "$port" text
    if [[ $status == 0 ]]; then printf '%s' "$text"; else printf '%s' "$text" >&2; fi
  elif [[ $status == 0 ]]; then cat <&"$port"; else cat <&"$port" >&2; fi
  exec {port}>&-
  return "$status"
}
export -f _rlm_call
for _rlm_tool in $RLM_TOOLS; do
  eval "function $_rlm_tool { _rlm_call $_rlm_tool \"\$@\"; }; export -f $_rlm_tool"
done
unset _rlm_tool
_rlm_save() { printf '%s\0' "$PWD" "${ANSWER_READY-}" "${ANSWER_CONTENT-}" > "$RLM_STATE_FILE"; }
trap _rlm_save EXIT
source "$RLM_CODE_FILE"
_rlm_status=$?
_rlm_save
exit "$_rlm_status"
"""
shell = {"RLM_DIRECTORY": fs_root, "ANSWER_READY": "", "ANSWER_CONTENT": ""}
"""Variables whose values are kept from one shell to the next."""


def run_bash(code: str) -> "tuple[str, str | None]":
    """Run code in a new login shell. Return its status, and a message if no shell was started."""
    with open(shell["RLM_CODE_FILE"], "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(code + "\n")
    if os.path.exists(shell["RLM_STATE_FILE"]):
        os.remove(shell["RLM_STATE_FILE"])
    command = ["bash", "-l", shell["RLM_SCRIPT_FILE"]]
    try:
        pid = os.posix_spawnp("bash", command, {**os.environ, **shell})
    except OSError as error:
        return "error", f"The shell could not be started: {error}"
    os.waitpid(pid, 0)
    try:
        with open(shell["RLM_STATE_FILE"], encoding="utf-8", errors="replace") as file:
            directory, ready, content = file.read().split("\0")[:3]
        shell.update(RLM_DIRECTORY=directory, ANSWER_READY=ready, ANSWER_CONTENT=content)
    except (OSError, ValueError):
        pass  # the shell was killed or replaced (`exec`): the values of the time before stay
    return "ok", None


def bash_answer() -> dict:
    """Return the variables of the answer as the host reads them."""
    is_ready = shell["ANSWER_READY"].strip().lower() in READY_WORDS
    return {"ready": is_ready, "content": shell["ANSWER_CONTENT"]}


def prepare_shells() -> None:
    """Write the script of the shells, and listen for the tool calls of their functions."""
    for key, name in (("CODE", "code.sh"), ("STATE", "state"), ("SCRIPT", "session.sh")):
        shell[f"RLM_{key}_FILE"] = os.path.join(control_dir, name)
    with open(shell["RLM_SCRIPT_FILE"], "w", encoding="utf-8") as file:
        file.write(SHELL_SCRIPT)
    listener = socket.create_server(("127.0.0.1", 0))
    token = os.urandom(16).hex()
    shell["RLM_FS_ROOT"] = fs_root
    shell["RLM_TOOLS"] = " ".join(TOOL_NAMES)
    shell["RLM_TOOL_PORT"] = str(listener.getsockname()[1])
    shell["RLM_TOOL_TOKEN"] = token
    threading.Thread(target=serve_shells, args=(listener, token), daemon=True).start()


def serve_shells(listener: socket.socket, token: str) -> None:
    """Answer the tool calls of shells, each in a separate thread."""
    while True:
        caller = listener.accept()[0]
        threading.Thread(target=answer_shell, args=(caller, token), daemon=True).start()


def answer_shell(caller: socket.socket, token: str) -> None:
    """Answer one tool call: token, number of words, words, text of stdin, each with a zero byte at its end."""
    with caller:
        try:
            fields = read_fields(caller)
            if fields[0] != token:
                return
            code, text = shell_call(fields[1], fields[2:-1], fields[-1])
            data = text.encode("utf-8", "surrogateescape") + b"\n"
            is_short = len(data) < SHORT_BYTES and b"\0" not in data
            caller.sendall(f"{code}{'s' if is_short else ''}\0".encode() + data)
        except OSError:
            pass  # the shell has ended


def read_fields(caller: socket.socket) -> list:
    """Return token, tool, words and text of a call."""
    data = b""
    wanted = 2
    while data.count(b"\0") < wanted:
        data += receive(caller)
        if wanted == 2 and data.count(b"\0") >= 2:
            wanted += int(data.split(b"\0")[1]) + 1
    fields = data.decode("utf-8", "surrogateescape").split("\0")[:wanted]
    return [fields[0], *fields[2:]]


def shell_call(tool: str, words: list, text: str) -> "tuple[int, str]":
    """Call a tool with the words of a command line. Return the exit code, and the output for stdout or stderr."""
    try:
        args, kwargs = arguments_of(tool, words, text)
        result = call_tool(tool, args, kwargs)
    except Exception as error:  # noqa: BLE001 - the shell shows it
        return 1, f"{tool}: {error}"
    if isinstance(result, str) and tool != "llm_batch":
        return 0, result
    return 0, json.dumps(result, ensure_ascii=False)


def arguments_of(tool: str, words: list, text: str) -> "tuple[list, dict]":
    """Return the arguments of a tool call on a command line. Raises ValueError."""
    is_batch = tool == "llm_batch"
    if words and words[0] == "--json":
        if len(words) > 2:
            raise ValueError(f"--json takes one argument; got {len(words) - 2} more")
        return structured(tool, json_of(words[1] if len(words) == 2 else text))
    if is_batch and words and words[0] == "--lines":
        if len(words) > 1:
            raise ValueError("--lines reads prompts from stdin and takes no argument")
        return [text.splitlines()], {}
    if words:
        return ([words], {}) if is_batch else ([value_of(word) for word in words], {})
    if not text.strip():
        return ([[]], {}) if is_batch else ([], {})
    try:
        return structured(tool, json_of(text))
    except ValueError:
        if is_batch:
            return [[text.strip()]], {}
        raise


def structured(tool: str, value: object) -> "tuple[list, dict]":
    """Return the arguments that a JSON value stands for."""
    is_batch = tool == "llm_batch"
    if isinstance(value, dict) and is_batch and "prompts" in value:
        return [value["prompts"]], {}
    if isinstance(value, dict) and ("args" in value or "kwargs" in value):
        args, kwargs = value.get("args") or [], value.get("kwargs") or {}
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise ValueError('"args" must be a list and "kwargs" an object')
        return args, kwargs
    if isinstance(value, dict):
        return [], value
    if isinstance(value, list):
        return ([value], {}) if is_batch else (value, {})
    return ([[value]], {}) if is_batch else ([value], {})


def json_of(text: str) -> object:
    """Return the value of a JSON text. Raises ValueError that shows the text."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {text.strip():.200} ({error})") from None


def value_of(word: str) -> object:
    """Return a word as JSON, or as it is."""
    try:
        return json.loads(word)
    except ValueError:
        return word


# --------------------------------------------------------------------------------------------------- executions


class ReplServer:
    """Executes requests, one after another."""

    def __init__(self, is_bash: bool) -> None:
        self._is_bash = is_bash
        self._requests = os.fdopen(os.dup(0), "rb")
        self._replies = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._outputs = (OutputPipe(1), OutputPipe(2))
        self._writers = (text_writer(1), text_writer(2))
        self._count = 0
        self._written = ""

    def serve(self) -> None:
        """Execute until the host closes the stream."""
        self.reply({"ready": True})
        for line in self._requests:
            request = json.loads(line)
            if "history" in request:
                self.write_history(request["history"])
            else:
                self.reply(self.execute(request))

    def reply(self, message: dict) -> None:
        """Send one line to the host."""
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._replies, data) :]

    def write_history(self, text: str) -> None:
        """Write the conversation so far. The host learns of a failure from the next reply."""
        self._problem = None
        try:
            with open(os.path.join(fs_root, ".messages"), "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self._problem = str(error)

    _problem: "str | None" = None

    def execute(self, request: dict) -> dict:
        """Run the code of a request and return the reply."""
        self._count += 1
        for output in self._outputs:
            output.begin()
        sys.stdout, sys.stderr = self._writers
        if self._is_bash:
            status, result = run_bash(request["code"])
        else:
            status, result = run_python(request["code"], self._count)
        for stream in (*self._writers, sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: BLE001 - the code has closed it, or put something else in its place
                pass
        if os.getpid() != OWN_PID:
            os._exit(0)  # a child that the code has forked: its parent replies
        self.reopen_writers()
        own = bash_answer() if self._is_bash else python_answer()
        self.write_answer(own)
        stdout, stderr = (output.end() for output in self._outputs)
        reply = {"status": status, "stdout": stdout, "stderr": stderr, "result": result}
        reply.update(execution_count=self._count, seq=request.get("seq"), answer=own)
        if self._problem is not None:
            reply["history_error"] = self._problem
        return reply

    def reopen_writers(self) -> None:
        """Replace writers that the code has closed."""
        if any(writer.closed for writer in self._writers):
            self._writers = (text_writer(1), text_writer(2))

    def write_answer(self, own: dict) -> None:
        """Write the answer where `RLMExecutor.read_answer` finds it."""
        text = json.dumps(own)
        if text == self._written:
            return
        try:
            with open(SETTINGS["answer_file"], "w", encoding="utf-8") as file:
                file.write(text)
            self._written = text
        except OSError as error:
            sys.stderr.write(f"the answer could not be written: {error}\n")


def main() -> None:
    """Serve the host until it closes the stream."""
    is_bash = SETTINGS["repl_language"] == "bash"
    if is_bash:
        prepare_shells()
    server = ReplServer(is_bash)
    sys.modules["__main__"] = main_module
    server.serve()


main()
