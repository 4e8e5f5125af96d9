// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The other end of the guest's connections: swallows, sends, or asks for an echo.
//!
//! QEMU's user-mode network leads the guest's gateway to this machine's loopback address, so three
//! ports there are enough, and no other program. Threads end with the process, and do nothing
//! while no guest connects.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

/// Three ports at which something listens.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Swallows all that comes.
    pub sink: u16,
    /// Sends what was agreed, and closes.
    pub source: u16,
    /// Sends one byte at a time and waits for it to come back, as often as was agreed; then closes.
    pub echo: u16,
}

/// How much a peer does on each connection.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Bytes that the source sends.
    pub bytes: u64,
    /// Round trips that the echo port makes.
    pub round_trips: u32,
}

impl Peer {
    /// Listens at three ports of `address`.
    pub fn listen(address: Ipv4Addr, share: Share) -> io::Result<Self> {
        Ok(Self {
            sink: serve(address, |mut stream| {
                io::copy(&mut stream, &mut io::sink()).map(|_| ())
            })?,
            source: serve(address, move |stream| send(stream, share.bytes))?,
            echo: serve(address, move |stream| ask(stream, share.round_trips))?,
        })
    }
}

fn serve(
    address: Ipv4Addr,
    work: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static,
) -> io::Result<u16> {
    let listener = TcpListener::bind((address, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let work = work.clone();
            // a broken connection is the guest's to notice
            thread::spawn(move || work(stream));
        }
    });
    Ok(port)
}

fn send(mut stream: TcpStream, bytes: u64) -> io::Result<()> {
    let block = [0; 1 << 14];
    let mut left = bytes;
    while left > 0 {
        let some = left.min(block.len() as u64);
        stream.write_all(&block[..some as usize])?;
        left -= some;
    }
    Ok(())
}

fn ask(mut stream: TcpStream, round_trips: u32) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut byte = [1];
    for _ in 0..round_trips {
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_does_its_share_on_each_connection() {
        let share = Share {
            bytes: 100_000,
            round_trips: 7,
        };
        let peer = Peer::listen(Ipv4Addr::LOCALHOST, share).unwrap();
        let connect = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        for _ in 0..2 {
            let mut got = Vec::new();
            connect(peer.source).read_to_end(&mut got).unwrap();
            assert_eq!(got.len(), 100_000);
            let mut stream = connect(peer.echo);
            let (mut byte, mut trips) = ([0], 0);
            while stream.read(&mut byte).unwrap() == 1 {
                stream.write_all(&byte).unwrap();
                trips += 1;
            }
            assert_eq!(trips, 7);
            connect(peer.sink).write_all(&[0; 70_000]).unwrap();
        }
    }
}
