"""Effects of functions outside the project (the standard library and well-known packages), as a table by name.
Pure.

Names are dotted as in the defining module. An object has the name of its class, so that `Path("a").read_text` is
`pathlib.Path.read_text`. A name that is not in the table is assumed to be harmless.
"""

from __future__ import annotations

import ast

from hourglass._tools.lint.rules import (
    CLOCK,
    ENVIRONMENT,
    FILES,
    IDENTITY,
    LOCKS,
    NETWORK,
    RANDOM,
    SLEEP,
    THREADS,
)
from hourglass._tools.lint.values import words


def _named(code: str, module: str, names: str) -> dict[str, str]:
    return {f"{module}.{name}" if module else name: code for name in names.split()}


CALLS: dict[str, str] = {
    name: code
    for part in (
        _named(
            CLOCK,
            "time",
            "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns thread_time "
            "thread_time_ns clock_gettime clock_gettime_ns",
        ),
        _named(
            CLOCK,
            "datetime",
            "datetime.now datetime.utcnow datetime.today date.today datetime.datetime.today",
        ),
        _named(CLOCK, "", "pendulum.now pendulum.today arrow.now arrow.utcnow pandas.Timestamp.now"),
        _named(CLOCK, "django.utils.timezone", "now localtime localdate"),
        _named(SLEEP, "", "time.sleep asyncio.sleep gevent.sleep trio.sleep anyio.sleep"),
        _named(
            RANDOM,
            "random",
            "random randint randrange choice choices shuffle sample uniform triangular gauss normalvariate expovariate "
            "betavariate gammavariate lognormvariate vonmisesvariate paretovariate weibullvariate getrandbits randbytes seed "
            "binomialvariate SystemRandom",
        ),
        _named(RANDOM, "uuid", "uuid1 uuid4 uuid6 uuid7 getnode"),
        _named(RANDOM, "os", "urandom getrandom"),
        _named(
            RANDOM, "secrets", "token_bytes token_hex token_urlsafe choice randbelow randbits SystemRandom"
        ),
        _named(
            ENVIRONMENT,
            "os",
            "getenv getenvb getpid getppid getcwd getcwdb getlogin getuid cpu_count uname gethostname putenv setenv chdir "
            "process_cpu_count sched_getaffinity",
        ),
        _named(ENVIRONMENT, "socket", "gethostname getfqdn"),
        _named(ENVIRONMENT, "platform", "node platform uname system machine release version processor"),
        _named(
            ENVIRONMENT, "", "getpass.getuser multiprocessing.cpu_count locale.getlocale threading.get_ident"
        ),
        _named(FILES, "", "open input io.open io.FileIO codecs.open fileinput.input"),
        _named(
            FILES,
            "os",
            "open read write stat lstat listdir scandir walk mkdir makedirs rmdir removedirs remove unlink rename renames "
            "replace link symlink readlink chmod chown truncate access utime mkfifo statvfs",
        ),
        _named(
            FILES,
            "os.path",
            "exists lexists isfile isdir islink getsize getmtime getctime getatime realpath samefile",
        ),
        _named(
            NETWORK,
            "os",
            "system popen fork forkpty execv execve execl execlp execvp posix_spawn posix_spawnp spawnl spawnv kill killpg "
            "wait waitpid pipe",
        ),
        _named(
            NETWORK,
            "socket",
            "socket create_connection create_server getaddrinfo gethostbyname gethostbyaddr socketpair",
        ),
        _named(
            NETWORK, "asyncio", "open_connection start_server create_subprocess_exec create_subprocess_shell"
        ),
        _named(THREADS, "threading", "Thread Timer"),
        _named(THREADS, "_thread", "start_new_thread"),
        _named(THREADS, "concurrent.futures", "ThreadPoolExecutor ProcessPoolExecutor wait as_completed"),
        _named(THREADS, "concurrent.futures.thread", "ThreadPoolExecutor"),
        _named(THREADS, "concurrent.futures.process", "ProcessPoolExecutor"),
        _named(THREADS, "multiprocessing", "Process Pool Manager Queue Pipe"),
        _named(THREADS, "multiprocessing.pool", "Pool ThreadPool"),
        _named(
            THREADS,
            "asyncio",
            "run create_task ensure_future gather wait wait_for as_completed to_thread new_event_loop get_event_loop "
            "get_running_loop run_coroutine_threadsafe Runner TaskGroup timeout",
        ),
        _named(LOCKS, "threading", "Lock RLock Condition Semaphore BoundedSemaphore Event Barrier local"),
        _named(LOCKS, "queue", "Queue LifoQueue PriorityQueue SimpleQueue"),
        _named(LOCKS, "asyncio", "Lock Semaphore Event Condition Queue"),
        _named(IDENTITY, "", "id hash object.__hash__"),
    )
    for name, code in part.items()
}
"""The code of the rule that a call breaks, by the name of the called function."""

BY_SETS = frozenset(("asyncio.wait", "asyncio.as_completed"))
ON_LOOP = BY_SETS | frozenset(
    _named(
        SLEEP,
        "asyncio",
        "sleep create_task ensure_future gather wait_for timeout timeout_at TaskGroup shield get_running_loop get_event_loop "
        "current_task all_tasks Future Lock Semaphore BoundedSemaphore Event Condition Barrier Queue PriorityQueue LifoQueue",
    )
)
"""asyncio functions that run on a workflow's event loop. They are allowed in `async def` code, unless they use sets."""

READS: dict[str, str] = _named(ENVIRONMENT, "", "os.environ os.environb sys.argv sys.stdin sys.flags")
"""Objects that workflow code must not even read."""

_FAMILIES: dict[str, str] = {
    "shutil.": FILES,
    "tempfile.": FILES,
    "glob.": FILES,
    "linecache.": FILES,
    "numpy.random.": RANDOM,
    "secrets.SystemRandom.": RANDOM,
    "random.SystemRandom.": RANDOM,
    **{
        f"{package}.": NETWORK
        for package in words(
            "subprocess urllib.request urllib3 http.client http.server ftplib smtplib imaplib poplib "
            "telnetlib xmlrpc.client socketserver requests httpx aiohttp websockets grpc paramiko boto3 "
            "botocore redis psycopg psycopg2 asyncpg pymysql mysql pymongo sqlite3 kafka pika openai "
            "anthropic stripe"
        )
    },
    "socket.socket.": NETWORK,
    "threading.Thread.": THREADS,
    "concurrent.futures.ThreadPoolExecutor.": THREADS,
    "concurrent.futures.ProcessPoolExecutor.": THREADS,
    **{
        f"{kind}.": LOCKS
        for kind in words(
            "threading.Lock threading.RLock threading.Condition threading.Semaphore "
            "threading.BoundedSemaphore threading.Event threading.Barrier queue.Queue queue.LifoQueue "
            "queue.PriorityQueue queue.SimpleQueue"
        )
    },
}
"""Packages and classes for which every call breaks a rule."""

_HARMLESS = words(
    "httpx.URL httpx.Timeout httpx.Limits httpx.Headers httpx.QueryParams httpx.Request "
    "httpx.Response requests.Request requests.Response sqlite3.Row aiohttp.ClientTimeout glob.escape "
    "subprocess.list2cmdline urllib.request.quote"
)
_PATH_METHODS = words(
    "read_text read_bytes write_text write_bytes open exists is_file is_dir is_symlink stat lstat "
    "iterdir glob rglob walk mkdir rmdir unlink touch rename replace chmod symlink_to hardlink_to "
    "readlink resolve samefile owner group"
)
_PATH_ENVIRONMENT = frozenset({"cwd", "home", "expanduser", "absolute"})
_PATHS = ("pathlib.Path.", "pathlib.PosixPath.", "pathlib.WindowsPath.")
_NOW_WITHOUT_ARGUMENTS = {
    "time.localtime": 0,
    "time.gmtime": 0,
    "time.ctime": 0,
    "time.asctime": 0,
    "time.strftime": 1,
}

RESULTS: dict[str, str] = {
    "logging.getLogger": "logging.Logger",
    "requests.session": "requests.Session",
    "sqlite3.connect": "sqlite3.Connection",
    "psycopg.connect": "psycopg.Connection",
    "psycopg2.connect": "psycopg2.Connection",
    "pymysql.connect": "pymysql.Connection",
    "redis.from_url": "redis.Redis",
    "boto3.client": "boto3.Client",
    "boto3.resource": "boto3.Resource",
    "socket.socket": "socket.socket",
    "socket.create_connection": "socket.socket",
    "datetime.datetime": "datetime.datetime",
    "itertools.count": "itertools.count",
    "itertools.cycle": "itertools.cycle",
    "iter": "iterator",
    "hourglass.activity.Activity.start": "hourglass.workflow.Task",
    "hourglass.activity.Activity.start_local": "hourglass.workflow.Task",
    "hourglass.activity.Activity.options": "hourglass.activity.Activity",
    "hourglass.workflow.spawn": "hourglass.workflow.Task",
    "hourglass.workflow.start_activity": "hourglass.workflow.Task",
    "hourglass.workflow.start_local_activity": "hourglass.workflow.Task",
    "hourglass.workflow.start_child_workflow": "hourglass.workflow.Task",
}
"""The class of the object that a function returns, for functions that are not classes themselves."""

_OBJECTS = frozenset(RESULTS.values())


def rule_of_call(name: str, call: ast.Call | None) -> str | None:
    """Return the code of the rule that a call of this name, with the arguments of `call`, breaks, or None."""
    if name in CALLS:
        return CALLS[name]
    if call is not None and name in _NOW_WITHOUT_ARGUMENTS:
        return CLOCK if len(call.args) <= _NOW_WITHOUT_ARGUMENTS[name] and not call.keywords else None
    if name == "random.Random":  # deterministic with a seed from the author
        return RANDOM if call is not None and not call.args and not call.keywords else None
    last = name.rpartition(".")[2]
    if name.startswith(_PATHS):
        return FILES if last in _PATH_METHODS else ENVIRONMENT if last in _PATH_ENVIRONMENT else None
    if last.endswith(("Error", "Exception")) or name in _HARMLESS or ".types." in name:
        return None
    if "()" in name:  # the result of a call is harmless data unless its class is known
        return None
    return next((code for family, code in _FAMILIES.items() if name.startswith(family)), None)


def is_function(name: str) -> bool:
    """Whether a name refers to a function, not to a class or an object."""
    return not name.rpartition(".")[2][:1].isupper() and name not in _OBJECTS and "()" not in name


def result_of_call(name: str) -> str:
    """Return the class name of the result of a call. A class returns instances; for most functions the class is unknown."""
    if name in RESULTS:
        return RESULTS[name]
    return name if name.rpartition(".")[2][:1].isupper() else f"{name}()"
