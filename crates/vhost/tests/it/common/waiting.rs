// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files whose close waits for another process, or for the other end.

use std::{
    ffi::CString,
    fs::File,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// A file system in user space of one file, which answers nothing once that is open. After some
/// time it ends by itself: what waits for it can not even be killed.
pub struct Silent {
    at: PathBuf,
    stop: Option<Sender<()>>,
    /// Whether it ended by itself.
    server: Option<JoinHandle<bool>>,
}

impl Silent {
    #[allow(unsafe_code)]
    /// At a path where nothing is. It ends by itself after `most`.
    pub fn new(at: PathBuf, most: Duration) -> Self {
        let mut options = File::options();
        let mut device = options.read(true).write(true).open("/dev/fuse").unwrap();
        File::create(&at).unwrap();
        let path = CString::new(at.to_str().unwrap()).unwrap();
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=100000,user_id=0,group_id=0");
        let options = CString::new(options).unwrap();
        // SAFETY: five strings that end, and live longer than the call.
        let mounted = unsafe {
            let flags = libc::MS_NOSUID | libc::MS_NODEV;
            let kind = c"fuse".as_ptr();
            libc::mount(kind, path.as_ptr(), kind, flags, options.as_ptr().cast())
        };
        assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
        let (stop, stopped) = channel::<()>();
        let server = std::thread::spawn(move || {
            // Closing the device, at the end, makes every wait for an answer an error.
            rustix::fs::fcntl_setfl(&device, rustix::fs::OFlags::NONBLOCK).unwrap();
            let mut request = vec![0; 1 << 17];
            let start = Instant::now();
            while start.elapsed() < most {
                let wait = stopped.recv_timeout(Duration::from_millis(5));
                if wait != Err(RecvTimeoutError::Timeout) {
                    return false;
                }
                if device.read(&mut request).is_ok_and(|len| len >= 40) {
                    answer(&mut device, &request);
                }
            }
            true
        });
        Silent {
            at,
            stop: Some(stop),
            server: Some(server),
        }
    }

    /// The file, once more.
    pub fn file(&self) -> OwnedFd {
        let mut options = File::options();
        let file = options.read(true).write(true).open(&self.at);
        file.unwrap().into()
    }

    /// Ends it; says whether it had ended by itself.
    pub fn end(&mut self) -> bool {
        self.stop = None;
        let server = self.server.take();
        server.is_some_and(|server| server.join().unwrap_or(true))
    }
}

impl Drop for Silent {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        self.end();
        let path = CString::new(self.at.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends, and lives longer than the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_file(&self.at);
    }
}

/// Answers `FUSE_INIT` and `FUSE_OPEN` (`linux/fuse.h`); whatever else comes waits for ever.
fn answer(device: &mut File, request: &[u8]) {
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
    let payload: Vec<u32> = match word(4) {
        26 => [&[7, 31, 0, 0, 0, 4096, 1][..], &[0; 9]].concat(),
        14 => vec![0; 4],
        _ => return,
    };
    let len = 16 + 4 * payload.len() as u32;
    let mut reply = [len.to_ne_bytes(), 0u32.to_ne_bytes()].concat();
    reply.extend(&request[8..16]);
    reply.extend(payload.iter().flat_map(|word| word.to_ne_bytes()));
    device.write_all(&reply).unwrap();
}

/// Our ends of TCP sockets that linger when they are closed.
pub struct Lingering {
    ours: Vec<TcpStream>,
    most: Duration,
}

impl Lingering {
    /// Each for so long.
    pub fn new(most: Duration) -> Self {
        let ours = Vec::new();
        Lingering { ours, most }
    }

    /// A socket whose last `close` waits until we have read what was written, which is never.
    pub fn socket(&mut self) -> OwnedFd {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        self.ours.push(listener.accept().unwrap().0);
        rustix::net::sockopt::set_socket_linger(&socket, Some(self.most)).unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        socket.into()
    }
}
