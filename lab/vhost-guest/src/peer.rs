// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The other side: echoes TCP and UDP, and tells the guest how often it has booted and the back end
//! has been started.
//!
//! Threads end with the process, and do nothing while no client connects.

use crate::network::PEER;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Port that echoes, TCP and UDP.
pub const ECHO: u16 = 7;
/// Port that tells [`Told`], as two numbers in text.
pub const TELL: u16 = 17;

/// What the guest cannot know by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// How often the guest has asked with a line `boot`.
    pub boots: u32,
    /// How often the back end was started again.
    pub restarts: u32,
}

/// The peer of one guest, and what it tells.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    told: Arc<Mutex<Told>>,
}

impl Peer {
    /// Listens on both ports, on threads that end with the process.
    pub fn listen() -> io::Result<Self> {
        let peer = Self::default();
        let (echo, tell) = (
            TcpListener::bind((PEER, ECHO))?,
            TcpListener::bind((PEER, TELL))?,
        );
        let datagrams = UdpSocket::bind((PEER, ECHO))?;
        thread::spawn(move || serve(&echo, echo_stream));
        let told = peer.clone();
        thread::spawn(move || serve(&tell, move |stream| told.tell(stream)));
        thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            // a datagram that cannot be sent is one lost, which the guest counts
            while let Ok((len, from)) = datagrams.recv_from(&mut bytes) {
                let _ = datagrams.send_to(&bytes[..len], from);
            }
        });
        Ok(peer)
    }

    /// Begins with a new guest.
    pub fn reset(&self) {
        *self.told() = Told::default();
    }

    /// The back end was started again.
    pub fn restarted(&self) {
        self.told().restarts += 1;
    }

    /// What the guest was told last.
    pub fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut question = [0];
        stream.read_exact(&mut question)?;
        let answer = {
            let mut told = self.told();
            told.boots += u32::from(question == *b"b");
            format!("{} {}\n", told.boots, told.restarts)
        };
        stream.write_all(answer.as_bytes())
    }
}

fn serve(
    listener: &TcpListener,
    work: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static,
) {
    for stream in listener.incoming().flatten() {
        let work = work.clone();
        // a broken connection is the guest's to notice
        thread::spawn(move || work(stream));
    }
}

fn echo_stream(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; 1 << 14];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => stream.write_all(&bytes[..len])?,
        }
    }
}
