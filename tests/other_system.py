"""Takes away, in a process of its own, what Windows or macOS lacks: for tests on Linux, as a module `sitecustomize`.

Copied under that name into a folder of PYTHONPATH, it acts on a process and on all that this one starts. OTHER_SYSTEM
names the system. Only code that is neither of the standard library nor installed has to do without: other packages go
by checks of their own, and find the system that really runs.

As a script: `sitecustomize.py PACKAGE LEFT_OUT...` imports all modules of a package, but for those that are left out,
and prints as JSON which cannot be imported, and why.
"""

import builtins
import contextlib
import importlib
import os
import pathlib
import sys
import types
from pathlib import Path

_WINDOWS_LACKS = {
    "os": """
        O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_LARGEFILE O_NDELAY O_NOATIME O_NOCTTY O_NOFOLLOW
        O_NONBLOCK O_PATH O_RSYNC O_SYNC O_TMPFILE WNOHANG chown chroot confstr copy_file_range ctermid eventfd fchdir
        fchmod fchown fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid getgrouplist getgroups getloadavg
        getpgid getpgrp getpriority getrandom getresgid getresuid getsid getuid initgroups killpg lchown lockf
        login_tty major makedev memfd_create minor mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_fadvise
        posix_fallocate posix_openpt posix_spawn posix_spawnp pread preadv ptsname pwrite pwritev readv register_at_fork
        sched_get_priority_max sched_getaffinity sched_getparam sched_getscheduler sched_setaffinity sched_yield
        sendfile set_blocking setegid seteuid setgid setgroups setpgid setpriority setregid setresgid setresuid setreuid
        setsid setuid splice statvfs sync sysconf sysconf_names tcgetpgrp tcsetpgrp ttyname uname unshare wait wait3
        wait4 waitid waitid_result WCOREDUMP WEXITSTATUS WIFEXITED WIFSIGNALED WTERMSIG writev
    """,
    "signal": """
        ITIMER_REAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT SIGRTMAX SIGRTMIN
        SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ
        SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt
        sigpending sigtimedwait sigwait sigwaitinfo
    """,
    "socket": "AF_UNIX CMSG_LEN MSG_DONTWAIT MSG_NOSIGNAL SO_REUSEPORT recv_fds send_fds sethostname",
    "select": "devpoll epoll kqueue poll",
    "mmap": "MADV_DONTNEED MADV_SEQUENTIAL MADV_WILLNEED MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE",
    "time": "clock_getres clock_gettime clock_settime pthread_getcpuclockid tzset",
}
_MACOS_LACKS = {
    "os": """
        O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_TMPFILE copy_file_range eventfd getrandom getresgid getresuid
        memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate sched_getaffinity sched_getparam sched_getscheduler
        sched_setaffinity setresgid setresuid splice unshare
    """,
    "signal": "SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT sigtimedwait sigwaitinfo",
    "socket": "AF_NETLINK AF_PACKET MSG_NOSIGNAL SO_BINDTODEVICE SO_DOMAIN SO_MARK",
    "select": "epoll",
    "time": "pthread_getcpuclockid",
}
_POSIX_MODULES = {"curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "termios", "tty"}
_FOLDERS = ("/proc/", "/sys/")
_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120
_looking = []
"""Not empty while this module itself reads /proc."""


class _View(types.ModuleType):
    """A module as it is on another system. What is set, is set in the module itself."""

    def __init__(self, module, lacks, has):
        super().__init__(module.__name__)
        object.__setattr__(self, "_about", (module, lacks, has))

    def __getattr__(self, name):
        module, lacks, has = self._about
        if name in lacks:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return has[name] if name in has else getattr(module, name)

    def __setattr__(self, name, value):
        setattr(self._about[0], name, value)


def take_away(system):
    """From here on, this process runs on something like that system."""
    windows = system == "windows"
    lacks = {name: names.split() for name, names in (_WINDOWS_LACKS if windows else _MACOS_LACKS).items()}
    has = {"sys": {"platform": "win32" if windows else "darwin"}}
    missing = _POSIX_MODULES if windows else set()
    if windows:
        has |= {"os": {"name": "nt"}, "ctypes": {"CDLL": _library}}
        sys.modules["uvloop"] = None
        _guard_files()
    real = builtins.__import__

    def importing(name, globals=None, locals=None, fromlist=(), level=0):
        if level or not _is_ours((globals or {}).get("__file__")):
            return real(name, globals, locals, fromlist, level)
        if (top := name.partition(".")[0]) in missing:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
        module = real(name, globals, locals, fromlist, level)
        if windows and top == "asyncio":
            module.SelectorEventLoop.add_signal_handler = module.AbstractEventLoop.add_signal_handler
        if (name := module.__name__) in lacks or name in has:
            return _View(module, lacks.get(name, ()), has.get(name, {}))
        return module

    def opening(event, args):
        if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith(_FOLDERS) and not _looking:
            raise FileNotFoundError(2, "No such file or directory", args[0])

    builtins.__import__ = importing
    sys.addaudithook(opening)


def _is_ours(file):
    """Whether code is neither of the standard library nor installed, nor here."""
    return bool(file) and not (file.startswith((_LIBRARY, "<frozen", __file__)) or "site-packages" in file)


def _library(name, *args, **options):
    """Windows knows no library of all that is loaded."""
    import ctypes

    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    return ctypes.CDLL(name, *args, **options)


def _guard_files():
    """On Windows, links take a privilege, and a file that is open or mapped is neither removed nor replaced."""

    def link(*_args, **_options):
        raise OSError(22, "A required privilege is not held by the client")

    def guarded(real):
        def change(*paths, **options):
            frame = sys._getframe(1)
            while frame and frame.f_code.co_filename.startswith((_LIBRARY, "<frozen")):
                frame = frame.f_back
            if frame and _is_ours(frame.f_code.co_filename):
                for path in paths:
                    if os.path.realpath(path) in _open_files():
                        raise PermissionError(13, "The process cannot access the file", path)
            return real(*paths, **options)

        return change

    os.symlink = link
    for name in ("remove", "rename", "replace", "unlink"):
        setattr(os, name, guarded(getattr(os, name)))
    if accessor := getattr(pathlib, "_NormalAccessor", None):  # Python 3.10's pathlib has taken the functions before
        for name in ("symlink", "rename", "replace", "unlink"):
            setattr(accessor, name, staticmethod(getattr(os, name)))


def _open_files():
    _looking.append(True)
    try:
        found = {f"/{line.partition(' /')[2]}" for line in Path("/proc/self/maps").read_text("utf-8").splitlines()}
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # it was this folder's own
                found.add(os.path.realpath(each))
        return found
    finally:
        _looking.pop()


def failures(package, left_out):
    """Modules of a package that cannot be imported, and why."""
    import pkgutil

    failed = {}
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not module.name.startswith(tuple(left_out)):
            try:
                importlib.import_module(module.name)
            except Exception as error:
                failed[module.name] = f"{type(error).__name__}: {error}"
    return failed


if __name__ == "sitecustomize":
    take_away(os.environ["OTHER_SYSTEM"])
elif __name__ == "__main__":
    import json

    print(json.dumps(failures(sys.argv[1], sys.argv[2:])))
