//! The thread that keeps the connection to the sidecar.

use crate::map::Map;
use crate::message;
use crate::session::Session;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    connect, recvmsg, send, socket_with, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
    ReturnFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long the sidecar may take to announce the segment.
const GREETING: Duration = Duration::from_secs(5);

/// The connection to a sidecar, shared by all configurations with its socket. Its thread ends when the last one does.
pub struct Link {
    shared: Arc<Shared>,
    wake: UnixStream,
}

struct Shared {
    id: u64,
    path: String,
    node: String,
    abi: &'static str,
    stop: AtomicBool,
    /// It changes whenever the session or the news does.
    version: AtomicU64,
    session: Mutex<Option<Arc<Session>>>,
    news: Mutex<Option<String>>,
}

/// The links in use, by socket and node.
type Links = HashMap<(String, String), Weak<Link>>;

/// A session as a worker has seen it last: the link's id and version, and the session.
type Seen = (u64, u64, Option<Arc<Session>>);

static LINKS: Mutex<Option<Links>> = Mutex::new(None);
static IDS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static CACHE: RefCell<Vec<Seen>> = const { RefCell::new(Vec::new()) };
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Returns the link to the sidecar with a socket, and starts its thread if there is none yet. `node` is the id of
    /// this Envoy.
    pub fn to(path: &str, node: &str, abi: &'static str) -> std::io::Result<Arc<Link>> {
        let mut links = lock(&LINKS);
        let links = links.get_or_insert_default();
        links.retain(|_, l| l.strong_count() > 0);
        let key = (path.to_owned(), node.to_owned());
        if let Some(link) = links.get(&key).and_then(Weak::upgrade) {
            return Ok(link);
        }
        let (wake, woken) = UnixStream::pair()?;
        let shared = Arc::new(Shared {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            path: path.to_owned(),
            node: node.to_owned(),
            abi,
            stop: AtomicBool::new(false),
            version: AtomicU64::new(1),
            session: Mutex::new(None),
            news: Mutex::new(None),
        });
        let thread = shared.clone();
        std::thread::Builder::new().name("keyward".into()).stack_size(256 << 10).spawn(move || thread.run(&woken))?;
        let link = Arc::new(Link { shared, wake });
        links.insert(key, Arc::downgrade(&link));
        Ok(link)
    }

    /// Calls `run` with the current session, or with `None` while there is no connection. `news` is called first with
    /// each event that should be logged: the link's own thread must not log, because it may run while Envoy exits.
    pub fn with<R>(&self, news: impl FnOnce(&str), run: impl FnOnce(Option<&Session>) -> R) -> R {
        let version = self.shared.version.load(Ordering::Acquire);
        let session = CACHE.with_borrow_mut(|cache| {
            if let Some((_, v, s)) = cache.iter_mut().find(|(id, ..)| *id == self.shared.id) {
                if *v == version {
                    return s.clone();
                }
            }
            cache.retain(|(id, ..)| *id != self.shared.id);
            let s = lock(&self.shared.session).clone();
            cache.push((self.shared.id, version, s.clone()));
            if let Some(text) = lock(&self.shared.news).take() {
                news(&text);
            }
            s
        });
        run(session.as_deref())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.wake.write(&[0]);
    }
}

impl Shared {
    fn run(&self, woken: &UnixStream) {
        let mut pause = SHORTEST_PAUSE;
        while !self.stop.load(Ordering::Acquire) {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.connection(woken, &mut pause)));
            self.publish(
                None,
                match result {
                    Ok(why) => why.map(|why| format!("{why}; requests are left to the rate limit filter")),
                    Err(_) => {
                        Some("the connection's thread panicked; requests are left to the rate limit filter".into())
                    }
                },
            );
            let jitter = RandomState::new().hash_one(self.id) % (pause.as_millis() as u64 / 2 + 1);
            wait(woken, None, pause + Duration::from_millis(jitter));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Makes a connection, and returns why it ended.
    fn connection(&self, woken: &UnixStream, pause: &mut Duration) -> Option<String> {
        let session = match self.open(woken) {
            Ok(session) => Arc::new(session),
            Err(why) => return Some(format!("cannot use the socket {}: {why}", self.path)),
        };
        *pause = SHORTEST_PAUSE;
        self.publish(Some(session.clone()), Some(format!("connected to the sidecar at {}", self.path)));
        wait(woken, Some(session.socket()), Duration::MAX);
        // The sidecar sends nothing after the segment: it closed the connection, or broke the protocol.
        session.close();
        (!self.stop.load(Ordering::Acquire)).then(|| format!("lost the sidecar at {}", self.path))
    }

    fn open(&self, woken: &UnixStream) -> Result<Session, String> {
        let text = |e: Errno| e.to_string();
        let address = SocketAddrUnix::new(self.path.as_str()).map_err(text)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(text)?;
        connect(&socket, &address).map_err(text)?;
        send(&socket, &message::hello(&self.node, self.abi), SendFlags::NOSIGNAL).map_err(text)?;
        if !wait(woken, Some(&socket), GREETING) {
            return Err("the sidecar does not announce a segment".into());
        }
        let (announced, file) = announcement(&socket)?;
        let map = Map::new(file, announced.slots, announced.size)?;
        Ok(Session::new(map, socket))
    }

    fn publish(&self, session: Option<Arc<Session>>, news: Option<String>) {
        *lock(&self.session) = session;
        if news.is_some() {
            *lock(&self.news) = news;
        }
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// Receives the announcement of a segment with its file.
fn announcement(socket: &OwnedFd) -> Result<(message::Segment, OwnedFd), String> {
    let mut bytes = [0; 64];
    // Room for more files than one, so that a second one is an error and is closed.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| e.to_string())?;
    let mut files: Vec<OwnedFd> = Vec::new();
    for m in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = m {
            files.extend(fds);
        }
    }
    if got.bytes == 0 {
        return Err("the sidecar closed the connection".into());
    }
    let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    let announced = message::segment(&bytes[..got.bytes]).filter(|_| !cut);
    match (announced, files.len()) {
        (Some(a), 1) => Ok((a, files.remove(0))),
        _ => Err("the sidecar's announcement is malformed".into()),
    }
}

/// Waits until the socket is readable, the link ends or the time is over. It reports whether the socket is readable.
fn wait(woken: &UnixStream, socket: Option<&OwnedFd>, time: Duration) -> bool {
    let timeout = Timespec { tv_sec: time.as_secs().min(1 << 30) as i64, tv_nsec: time.subsec_nanos().into() };
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN)];
        fds.extend(socket.map(|s| PollFd::from_borrowed_fd(s.as_fd(), PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Err(Errno::INTR) => continue,
            Err(_) => std::thread::sleep(Duration::from_millis(100)), // out of memory
            Ok(_) => {}
        }
        return fds[0].revents().is_empty() && fds.get(1).is_some_and(|f| !f.revents().is_empty());
    }
}
