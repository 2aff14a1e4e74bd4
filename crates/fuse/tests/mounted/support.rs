//! A mount that unmounts itself, and the system calls that the standard library lacks.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use cowshed_fuse::{Notifier, Permissions, Session, SessionError, SessionOptions, TransportChoice, Unmounter};
use cowshed_vfs::Caches;
use cowshed_vfs::memfs::{MemFs, Options};

/// The turn of a test; None, with a line that says so, where mounting is impossible. Tests take
/// turns because some fork: a child holds what other tests have open, and their mounts would be
/// busy.
pub fn turn(test: &str) -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    // SAFETY: geteuid touches no memory.
    let able = unsafe { libc::geteuid() } == 0 && Path::new("/dev/fuse").exists();
    if !able {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI must be able to mount");
        eprintln!("skipped {test}: needs the superuser and /dev/fuse");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// How the mounts of these tests are served: `COWSHED_TEST_TRANSPORT` is `uring` or `dev`, else
/// whichever the kernel offers.
pub fn transport() -> TransportChoice {
    match std::env::var("COWSHED_TEST_TRANSPORT").as_deref() {
        Ok("uring") => TransportChoice::Uring,
        Ok("dev") => TransportChoice::Dev,
        _ => TransportChoice::Auto,
    }
}

/// A served mount of a memory file system.
pub struct Mount {
    pub fs: Arc<MemFs>,
    pub dir: tempfile::TempDir,
    pub unmounter: Unmounter,
    pub notifier: Notifier,
    pub caches: Arc<dyn Caches>,
    panicked: Arc<AtomicBool>,
    serving: Option<JoinHandle<Result<(), SessionError>>>,
}

impl Mount {
    pub fn new(change: impl FnOnce(&mut SessionOptions)) -> Mount {
        Mount::with_fs(MemFs::default(), change)
    }

    /// With options as a shared mount has them.
    pub fn shared() -> Mount {
        Mount::new(|o| {
            o.mount.allow_other = true;
            o.permissions = Permissions::Kernel;
        })
    }

    /// With a file system that wants to see opens.
    pub fn stateful(change: impl FnOnce(&mut SessionOptions)) -> Mount {
        let mut options = Options::default();
        options.capabilities.stateless_open = false;
        options.capabilities.stateless_opendir = false;
        Mount::with_fs(MemFs::new(options), change)
    }

    pub fn with_fs(fs: MemFs, change: impl FnOnce(&mut SessionOptions)) -> Mount {
        let fs = Arc::new(fs);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut options = SessionOptions {
            transport: transport(),
            ..SessionOptions::default()
        };
        let panicked = Arc::new(AtomicBool::new(false));
        let note = panicked.clone();
        options.on_panic = Some(Arc::new(move |_| note.store(true, Ordering::SeqCst)));
        change(&mut options);
        let mut session = Session::mount(fs.clone(), dir.path(), options).expect("mounting as the superuser");
        let unmounter = session.unmounter();
        let notifier = session.notifier().expect("a second device");
        let caches = session.caches();
        fs.set_caches(caches.clone());
        Mount {
            fs,
            dir,
            unmounter,
            notifier,
            caches,
            panicked,
            serving: Some(session.spawn()),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Unmounts and waits for the session to end.
    pub fn end(mut self) -> Arc<MemFs> {
        self.unmounter.unmount(false).expect("nothing is busy");
        self.wait();
        self.fs.clone()
    }

    /// Waits for a session that another process has unmounted.
    pub fn wait(&mut self) {
        self.wait_for_result().expect("a session that ends in order");
        assert!(
            !self.panicked.load(Ordering::SeqCst),
            "the file system panicked: see above"
        );
    }
}

impl Mount {
    pub fn wait_for_result(&mut self) -> Result<(), SessionError> {
        let serving = self.serving.take().expect("waited for once");
        serving.join().expect("no panic")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.serving.is_some() {
            let _ = self.unmounter.unmount(true);
            if std::thread::panicking() {
                let _ = self.serving.take().map(JoinHandle::join);
            } else {
                self.wait();
            }
        }
    }
}

pub fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL in test paths")
}

pub fn check(result: i64) -> io::Result<i64> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The `errno` of a failure.
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result
        .expect_err("this fails")
        .raw_os_error()
        .expect("an error of the system")
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: valid strings, and a buffer of the stated length.
    check(unsafe {
        libc::lsetxattr(
            c(path).as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
        .into()
    })
    .map(drop)
}

pub fn get_xattr(path: &Path, name: &str, room: usize) -> io::Result<Vec<u8>> {
    let name = CString::new(name)?;
    let mut buf = vec![0u8; room];
    // SAFETY: as above.
    let len = check(unsafe { libc::lgetxattr(c(path).as_ptr(), name.as_ptr(), buf.as_mut_ptr().cast(), room) as i64 })?;
    buf.truncate(len as usize);
    Ok(if room == 0 { vec![0; len as usize] } else { buf })
}

pub fn list_xattr(path: &Path) -> io::Result<Vec<String>> {
    let mut buf = vec![0u8; 65536];
    // SAFETY: as above.
    let len = check(unsafe { libc::llistxattr(c(path).as_ptr(), buf.as_mut_ptr().cast(), buf.len()) as i64 })?;
    buf.truncate(len as usize);
    Ok(buf
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .map(|n| String::from_utf8_lossy(n).into())
        .collect())
}

pub fn remove_xattr(path: &Path, name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: valid strings.
    check(unsafe { libc::lremovexattr(c(path).as_ptr(), name.as_ptr()).into() }).map(drop)
}

pub fn rename2(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c(from), c(to));
    // SAFETY: valid strings.
    check(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags).into() })
        .map(drop)
}

pub fn mknod(path: &Path, mode: u32, dev: libc::dev_t) -> io::Result<()> {
    // SAFETY: a valid string.
    check(unsafe { libc::mknod(c(path).as_ptr(), mode, dev).into() }).map(drop)
}

pub fn seek(file: &impl AsRawFd, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: integers only.
    check(unsafe { libc::lseek(file.as_raw_fd(), offset, whence) })
}

pub fn fallocate(file: &impl AsRawFd, mode: i32, offset: i64, len: i64) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len).into() }).map(drop)
}

/// Size and mtime, with `flags` of statx(2). Nothing else is asked for: Linux fetches all where it
/// knows one not to be true.
pub fn statx(path: &Path, flags: i32) -> io::Result<(u64, i64, i64)> {
    let mut buf = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let path = c(path);
    // SAFETY: a valid string and a buffer of the right type, in which zeros are fine.
    let found = unsafe {
        check(
            libc::statx(
                libc::AT_FDCWD,
                path.as_ptr(),
                flags,
                libc::STATX_SIZE | libc::STATX_MTIME,
                buf.as_mut_ptr(),
            )
            .into(),
        )?;
        buf.assume_init()
    };
    Ok((found.stx_size, found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec.into()))
}

/// An ioctl without an argument.
pub fn ioctl(file: &impl AsRawFd, cmd: u32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(file.as_raw_fd(), cmd.into()) }.into()).map(drop)
}

/// Runs `f` in a child process as another user with these groups; its error comes back, 255 for one
/// without number, 254 for a panic.
pub fn as_user(uid: u32, gid: u32, groups: &[u32], f: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    in_child(|| {
        // SAFETY: the slice is valid; the other calls take integers.
        unsafe {
            check(libc::setgroups(groups.len(), groups.as_ptr()).into())?;
            check(libc::setresgid(gid, gid, gid).into())?;
            check(libc::setresuid(uid, uid, uid).into())?;
        }
        f()
    })
}

/// What [`in_child`] says of a child that a signal has ended: no error number.
pub const ENDED_BY_SIGNAL: i32 = 0;

/// Runs `f` in a child process, as [`as_user`] does.
pub fn in_child(f: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: the child has one thread, runs `f` and leaves by `_exit`, so that nothing of ours
    // runs twice.
    unsafe {
        match libc::fork() {
            0 => {
                let code = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
                    Ok(Ok(())) => 0,
                    Ok(Err(e)) => e.raw_os_error().unwrap_or(255),
                    Err(_) => 254,
                };
                libc::_exit(code)
            }
            pid => {
                let mut status = 0;
                check(libc::waitpid(pid, &mut status, 0).into())?;
                match libc::WEXITSTATUS(status) {
                    0 if libc::WIFEXITED(status) => Ok(()),
                    code => Err(io::Error::from_raw_os_error(code)),
                }
            }
        }
    }
}

/// Has a signal end this process.
pub fn end_by_signal_after(time: std::time::Duration) -> io::Result<()> {
    let mut timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: 0 },
    };
    timer.it_value.tv_sec = time.as_secs() as _;
    timer.it_value.tv_usec = time.subsec_micros().into();
    // SAFETY: a valid structure, and no room for the timer before.
    check(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) }.into()).map(drop)
}

/// Gives this process its own view of the mount table.
fn leave_mount_table() -> io::Result<()> {
    // SAFETY: an integer.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into())?;
    mount("none".as_ref(), "/", None, libc::MS_REC | libc::MS_PRIVATE)
}

fn mount(from: &Path, to: &str, kind: Option<&CStr>, flags: libc::c_ulong) -> io::Result<()> {
    let (from, to) = (c(from), c(to.as_ref()));
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: valid strings, or null; no data is needed.
    check(unsafe { libc::mount(from.as_ptr(), to.as_ptr(), kind, flags, std::ptr::null()) }.into()).map(drop)
}

/// Lets all users in this process's view of the mount table open `/dev/fuse`, as on most machines.
pub fn open_device_to_all(scratch: &Path) -> io::Result<()> {
    leave_mount_table()?;
    let node = scratch.join("fuse");
    mknod(&node, libc::S_IFCHR | 0o666, libc::makedev(10, 229))?;
    std::fs::set_permissions(&node, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    mount(&node, "/dev/fuse", None, libc::MS_BIND)
}

/// This process sees an empty `/dev` but for `/dev/null`.
pub fn hide_devices() -> io::Result<()> {
    leave_mount_table()?;
    mount("none".as_ref(), "/dev", Some(c"tmpfs"), 0)?;
    mknod("/dev/null".as_ref(), libc::S_IFCHR | 0o666, libc::makedev(1, 3))?;
    std::fs::set_permissions("/dev/null", std::os::unix::fs::PermissionsExt::from_mode(0o666))
}

/// Interrupts this process with a signal every few milliseconds. Its handler does nothing, and
/// system calls are not restarted.
pub fn interrupt_often(every_micros: i64) -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: plain data, for which zeros are valid; the handler touches no memory.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        check(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()).into())?;
        let every = libc::timeval {
            tv_sec: 0,
            tv_usec: every_micros,
        };
        let timer = libc::itimerval {
            it_interval: every,
            it_value: every,
        };
        check(libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()).into()).map(drop)
    }
}

/// A child process that runs `f`, with a way to kill it.
pub struct Child(libc::pid_t);

impl Child {
    pub fn start(f: impl FnOnce()) -> Child {
        // SAFETY: as `in_child`.
        unsafe {
            match libc::fork() {
                0 => {
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
                    libc::_exit(outcome.is_err().into())
                }
                pid => Child(pid),
            }
        }
    }

    pub fn kill(&self) {
        // SAFETY: integers only; the child has not been waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }

    /// How it ended, once it has: an exit code, or a signal as a negative number.
    pub fn ended(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) };
        (pid == self.0).then(|| match libc::WIFSIGNALED(status) {
            true => -libc::WTERMSIG(status),
            false => libc::WEXITSTATUS(status),
        })
    }
}

/// Lets this process have no more than so many descriptors.
pub fn limit_descriptors(most: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: the structure is valid for the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }.into()).map(drop)
}

/// Puts `/dev/null` in the place of an open descriptor of this process.
pub fn replace_by_null(fd: i32) -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    // SAFETY: integers only; what has the descriptor keeps one that it can use and close.
    check(unsafe { libc::dup2(null.as_raw_fd(), fd) }.into()).map(drop)
}

/// A shared writable mapping.
pub struct Map {
    at: *mut libc::c_void,
    len: usize,
}

impl Map {
    pub fn shared(file: &impl AsRawFd, len: usize) -> io::Result<Map> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping wherever the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Map { at, len })
        }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours and as long as this; tests do not truncate below it.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }

    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours.
        check(unsafe { libc::msync(self.at, self.len, libc::MS_SYNC).into() }).map(drop)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and not used afterwards.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
